"""The contract suite: test functions that every store must pass, over a fixture `do`. Import the modules, one per
topic:

    from retrysafe.testing.contract.claim import *

Invariants are cited by number: I1 single grant, I2 no grant while a lease is live, I3 a fence never comes back,
I4 fencing, I5 an answer is written once, I6 replay is byte-identical, I8 a mismatch neither runs nor reveals,
I9 mismatch before busy, I11 unclear is not failed, I12 expired means new, and only then, I13 unfinished work is
never reaped, I14 a crash leaves a resumable state, I26 tenants do not meet, I32 a late copy changes nothing.
"""
