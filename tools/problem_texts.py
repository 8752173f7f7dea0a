"""What the problem pages say beyond the code: when a problem happens, and what each side does about it.

tools/problem_pages.py joins these texts with the problems and the error classes. A problem or an error without a text
here, and a text without a problem or an error, fail `make check`.
"""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    when: str
    client: str
    operator: str
    prevent: str
    identifiers: str = ""
    """What needs a word below the table of identifiers."""


NOTHING_TO_DO = "Nothing. The client can correct this by itself."
NO_CLIENT = "Nothing. The error is raised in your own process, before any client is involved."
SAME_KEY = "Send the same request with the same key again, after the time in `Retry-After`."

TEXTS: dict[str, Text] = {
    # Keys -------------------------------------------------------------------------------------------
    "missing-key": Text(
        "The route has `mode=\"required\"`, which is the default, and the request has no `Idempotency-Key` header.",
        "Make one random key (a UUID is good) for each operation the user wants. Save it before the first attempt. "
        "Send the same key with every retry.",
        "Look at `middleware.settings.census.table()` to see which clients send no keys. Use `mode=\"observe\"` to "
        "find them before you require keys, or `mode=\"optional\"` while clients are changed.",
        "Use a client that adds keys by itself: [`RetryTransport`](../howto/client.md).",
    ),
    "malformed-key": Text(
        "The header is empty, is sent twice, is longer than 255 characters, contains spaces, commas or characters "
        "outside ASCII, or breaks the `key_rule` of the route. The answer names the rule.",
        "Correct the key and send the request again. Nothing was stored, so the new key is safe.",
        NOTHING_TO_DO,
        "Send a UUID. Do not build keys from user input such as names or addresses.",
    ),
    "keys": Text(
        "This is the base class of [`MissingKey`](missing-key.md), [`MalformedKey`](malformed-key.md) and "
        "[`FingerprintMismatch`](mismatch.md). Catch it to handle all three.",
        "See the page of the subclass.", NOTHING_TO_DO, "See the page of the subclass.",
    ),
    "mismatch": Text(
        "The key is already stored, for a request with another method, path, query, media type or body. For a "
        "function: the other arguments differ. A retry usually gets this answer for one of three reasons:\n\n"
        "- A field changes with each attempt, such as a timestamp, a counter or a nonce.\n"
        "- The client used one key for two operations.\n"
        "- The first request was refused (an invalid form, a declined card), and the client corrected it under the "
        "same key. The refusal is "
        "[stored like any answer](../explanation/which-failures-to-store.md#what-about-a-rejected-form).\n\n"
        "A 422 without this `type` is your own: a validation error of your framework or handler. With "
        "`Idempotent-Replayed: true` it is the stored answer to the first request.",
        "If this is a new operation, or a corrected request, send it with a new key. If it is a retry, repeat the "
        "original request unchanged.",
        "A rising rate usually means that one client reuses keys. `retrysafe keys show` says when and by which "
        "route the key was first used. If a field changes with each retry (a timestamp, a trace id), leave it out of "
        "the comparison with `fingerprint=` or `ignore=`.",
        "Make the key when the user starts the operation, not when the page loads. Make a new one after each final "
        "answer. [What to hash](../explanation/what-to-hash.md) has the details.",
    ),
    # Try again --------------------------------------------------------------------------------------
    "not-now": Text(
        "This is the base class of errors that end by themselves: [`InProgress`](in-progress.md), "
        "[`RolledBack`](rolled-back.md), [`NotFinished`](not-finished.md) and [`NotDone`](not-done.md).",
        SAME_KEY, "Nothing, unless the error stays. Then see the page of the subclass.",
        "See the page of the subclass.",
    ),
    "in-progress": Text(
        "Another request with the same key is running now, or its process died and its lease has not lapsed yet.",
        SAME_KEY + " Do not make a new key: the first request may succeed.",
        "Nothing in normal operation. If one key stays in progress much longer than the route normally takes: "
        "`retrysafe keys why KEY`. A process that works renews its lease, so a key can be in progress for longer than "
        "one lease.",
        "Use `Policy(busy=\"wait\")` if clients should wait for the first answer. "
        "[409 or wait](../explanation/conflict-or-wait.md) helps you choose.",
    ),
    "rolled-back": Text(
        "The database rolled the transaction back: a deadlock, a serialization failure, or a lost connection before "
        "the commit. Nothing was changed.",
        "Send the request again. The same key and a new key are both safe.",
        "Look for long transactions and lock conflicts if the rate rises.",
        "Keep transactions short, and lock rows in the same order everywhere.",
    ),
    "not-finished": Text(
        "An operation stopped after one of its recovery points: a step failed for now, the process died, or the store "
        "refused to record a step ([`StepNotRecorded`](step-not-recorded.md)). Part of the work is done.",
        SAME_KEY + " Never use a new key: the finished steps would run again.",
        "Usually nothing: the next retry or the worker resumes the operation. If many stay unfinished, check that a "
        "[worker](../howto/worker.md) runs, and look at the last error with `retrysafe keys show`.",
        "Run the worker. Give foreign steps realistic timeouts.",
    ),
    "operation-undone": Text(
        "An operator undid a run of an [operation](../howto/operations.md) with `retrysafe operations undo` or on the "
        "console. Every step that had begun was undone. This is the stored answer of the key.",
        "Show that the request was undone. To repeat it, send it with a new key.",
        "Nothing. The ledger of the run (`retrysafe operations show`) has the reason and each undo.",
        "Nothing: an operator decided it.",
    ),
    "operation-undone-in-part": Text(
        "A run of an [operation](../howto/operations.md) was ended, and a step that had been sent to another system "
        "has no `undo`. With status 409 an operator ended it (`retrysafe operations undo RUN --leave-effects`); with "
        "502 a step failed for good. The steps that have an `undo` were undone.",
        "Do not send the request with a new key by yourself: what could not be undone would be done twice. Ask the "
        "operator.",
        "`retrysafe operations show` lists what was kept. Correct it by hand in the other system, then tell the client "
        "whether to send the request with a new key.",
        "Give each foreign step of a [saga](../howto/sagas.md) an `undo`.",
    ),
    "operation-cancelled": Text(
        "An operator ended a run of an [operation](../howto/operations.md) where it was, with `retrysafe operations "
        "cancel` or on the console. Nothing more was sent, and nothing was undone. This is the stored answer of the "
        "key.",
        "Do not send the request with a new key by yourself: what had been done until then would be done twice. Ask "
        "the operator.",
        "`retrysafe operations show` lists the steps that were done. The reason is in the log and in the audit row.",
        "Use `undo` instead of `cancel` if the steps have undos.",
    ),
    "operation-given-up": Text(
        "A step of an [operation](../howto/operations.md) failed as often as `max_attempts` allows, or for good. "
        "The steps that were done have been [undone](../howto/sagas.md). This is the stored answer of the key.",
        "Show that it failed. To repeat it, send it with a new key. `retrysafe.client` does not do that "
        "by itself.",
        "`retrysafe operations show` has the error of the step that failed, and each undo.",
        "Raise `Stop` or `Undo` with an answer of your own where you know that a step cannot succeed, such as for a "
        "declined card.",
    ),
    "not-done": Text(
        "You asked for the result of a job that has not finished.",
        "Ask again later. Enqueue the job again with the same key if it may be lost; a job that is already there is "
        "not sent twice.",
        "Check that the queue's workers run.", "Poll with a pause, or let the job report its result.",
    ),
    "operation-changed": Text(
        "An operation was started by code with other steps or another definition than the code that tries to resume "
        "it. It is left as it was.",
        "Send the same request with the same key again. The answer is 503 `not-finished`.",
        "Run the code that started the operation until it has finished, or resolve the key by hand. "
        "[Deploy while operations run](../howto/deploying.md) describes the safe order.",
        "Add steps under new names, and drain old operations before you remove their code.",
    ),
    "run-over": Text(
        "A command or a worker named one run of a key, and the key has expired and started a new run since.",
        "Nothing. Only operators and workers see this.",
        "Look at the key again and name the run that it has now.",
        "Act on a key soon after you look at it.",
    ),
    "not-uncertain": Text(
        "Somebody tried to resolve a key that is not uncertain: its owner came back, or a colleague decided first.",
        "Nothing. Only operators see this.",
        "Look at the key again with `retrysafe keys show` before you decide anything.",
        "Nothing to prevent: this error protects the earlier decision.",
    ),
    # Outcomes ---------------------------------------------------------------------------------------
    "outcome-unknown": Text(
        "The process that worked on this key died, or lost the store, inside your handler. Nobody knows whether the "
        "effect happened. retrysafe does not run it again by itself.\n\n"
        "A transaction gets this answer, too, if the connection is lost at its commit and the database cannot be "
        "reached ([`CommitUnclear`](commit-unclear.md)). There the database knows the outcome: the next retry replays "
        "the answer or runs again.",
        "Do not send the request with a new key: it may have happened. Show the user that the state is being checked. "
        "Every retry with the same key is safe, and gets this answer again until an operator has resolved the key. So "
        "retry in minutes, not in seconds.",
        "1. Set `RETRYSAFE_URL` to the store, and list the keys: `retrysafe keys list --state uncertain`. "
        "`retrysafe keys why KEY` says what happened.\n"
        "2. Ask the system that was called (the bank, your own tables) whether the effect happened.\n"
        "3. If it happened, store the answer that the client should get: `retrysafe keys resolve KEY --happened "
        "--status 201 --answer answer.json --because \"charge ch_7 is in their list\"`. The next retry gets it.\n"
        "4. If it did not happen: `retrysafe keys resolve KEY --did-not-happen --because \"not in their list\"`. The "
        "next retry runs.\n\n"
        "[Resolve unknown outcomes](../howto/resolving.md) has the details, and [a tutorial](../tutorial/crash-it.md) "
        "goes through it once.",
        "Use [an operation](../howto/operations.md) for calls to other systems, [a transaction]"
        "(../howto/transactions.md) for work in your database, "
        "or `Policy(abandoned=\"rerun\")` if running twice is harmless.",
        "`retry_same_key` is yes, because sending the same key again is always safe: nothing runs twice. `retryable` "
        "is no, because a retry alone changes nothing: a loop in your code would get the same error until an operator "
        "has resolved the key.",
    ),
    "outcome-unrecorded": Text(
        "The work was done, but the store could not be reached for so long that the answer could not be stored.",
        "Send the same request with the same key again. Never use a new key: the work has happened.",
        "Bring the store back. Keys that stay uncertain must be resolved by hand.",
        "Give the store redundancy. [Check your store](../howto/doctor.md) with `retrysafe doctor`.",
    ),
    "answer-gone": Text(
        "The request was carried out, but its answer is not stored: it was larger than `max_answer`, it was a stream, "
        "or it was erased; or an operator said that it happened, and gave no answer.",
        "Do not send it again. Look the result up, for example with a GET.",
        "Raise `max_answer` if normal answers are affected.",
        "Return small answers with the id of what was made, and let clients fetch the rest.",
    ),
    "stored-failure": Text(
        "A function failed, its policy has `failures=\"store\"`, and somebody called it again with the same key.",
        "Use a new key if you want to try again.", "Nothing.",
        "Use `failures=\"release\"`, the default of functions, if a failed call may run again.",
    ),
    "lease-lost": Text(
        "An attempt was silent for longer than its lease. Another attempt took the key over, or the key expired. "
        "Nothing that the late attempt writes is stored. It also happens if the store lost the claim: [a Redis "
        "failover without `?wait=`](../howto/redis.md#what-a-redis-failover-loses), or a backup that was restored. "
        "Then there is no other attempt, the work may have been done, and the next request with the key runs it again.",
        "Send the same request with the same key again, never with a new key. If another attempt took over, the answer "
        "is that of the attempt that counts.",
        "Look for long pauses: a stopped virtual machine, a blocked event loop, a store that answers slowly. If the "
        "store was restarted, restored or failed over at that time, assume that it lost claims: `retrysafe keys why "
        "KEY` says whether the key is known. Compare the requests that got this answer with the provider's records.",
        "Do not block the event loop. Raise `lease` above the longest pause that a living process can have. Use a "
        "store that does not lose claims: on Redis, `?wait=N`.",
    ),
    "failed": Text(
        "Your handler raised an exception, and the policy has `failures=\"store\"`. The failure is the final answer of "
        "this key.",
        "Do not retry with this key: the answer stays the same. Ask the user, or look the state up, before you use a "
        "new key.",
        "Find the exception in your own error log. The record has its time and route.",
        "Use `Policy(failures=\"release\")` where a failed request may run again. "
        "[Which failures to store](../explanation/which-failures-to-store.md) compares the choices.",
    ),
    "failed-for-now": Text(
        "Your handler raised an exception, and the policy releases the key, so that a retry runs the handler again.",
        "Send the same request with the same key again.",
        "Find the exception in your own error log.",
        "Correct the cause of the exception.",
    ),
    "step-failed": Text(
        "A step of an operation used up its tries in this attempt.",
        SAME_KEY,
        "`retrysafe keys show` lists the steps and the last error. The worker tries again.",
        "Set `tries` and `timeout` of the step to what the other system really needs.",
    ),
    # Requests ---------------------------------------------------------------------------------------
    "too-large": Text(
        "The request body is larger than `max_body` (1 MiB by default).",
        "Send a smaller body, or upload the file elsewhere and send its address.",
        "Raise `max_body` in the middleware's policy if the route must take larger bodies.",
        "Document the limit.",
    ),
    "too-slow": Text(
        "The request body did not arrive within `read_timeout` (30 s by default). Nothing was claimed.",
        "Send the same request with the same key again.",
        "Raise `read_timeout` if your clients have slow connections.", "Keep bodies small.",
    ),
    "unreadable-body": Text(
        "`Content-Length` is not a number, or the connection ended before the body was complete.",
        "Send the same request with the same key again.",
        "Check proxies between client and server if the rate rises.",
        "Let your HTTP library set `Content-Length`.",
    ),
    "quota": Text(
        "The account has more live keys, stored bytes or running requests than `quota=` allows.",
        SAME_KEY,
        "Find out whether the client retries in a loop with new keys. Raise the quota if the load is real.",
        "Clients: one key per operation, and a pause between retries.",
    ),
    "status-not-found": Text(
        "A status address of `busy=\"accepted\"` is wrong, has expired, or belongs to another account.",
        "Send the original request with the same key again. It gets the answer or a new status address.",
        NOTHING_TO_DO,
        "Ask the status address with the same credentials as the request.",
    ),
    "verification": Text(
        "A webhook has no valid signature, is too old, is not a POST, or has another form than its sender uses. No "
        "handler ran, and nothing was stored.",
        "Senders: nothing. A genuine sender retries.",
        "Check the signing secret of the endpoint, that the body reaches the receiver as raw bytes, and the clock of "
        "this machine. The log says which check failed.",
        "Give the receiver both secrets while you rotate one. Do not parse the body in front of it.",
    ),
    # Set-up -----------------------------------------------------------------------------------------
    "misconfigured": Text(
        "The route cannot be protected: the scope is empty, or a setting contradicts another. Nothing ran.",
        "Retry later with the same key. The server must be corrected first.",
        "Read the log line of `retrysafe.web`: it names the route, the setting and the fix.",
        "Test each protected route once: see [Test your endpoints](../howto/testing.md).",
    ),
    "unprotected": Text(
        "A route that requires a key answered with success, but its code never claimed the key. The work was done "
        "without protection, and the answer was replaced to make the mistake visible.",
        "Do not retry: it was done.",
        "Add `Depends(idempotent(...))`, `@idempotent` or `exchange.claim(...)` to the route. The log names it.",
        "Test each protected route once: see [Test your endpoints](../howto/testing.md).",
    ),
    "retrysafe-error": Text(
        "This is the base class of everything that retrysafe raises. Catch it to handle all errors of this library.",
        "See the page of the subclass.", "See the page of the subclass.",
        "Catch the most specific class you can handle.",
    ),
    "usage": Text(
        "A setting or a call is wrong. The message says which one, and what to write instead.",
        NO_CLIENT, "Correct the code. Over HTTP the answer is `misconfigured`.",
        "Build your `RetrySafe`, policies and operations at import time: mistakes are found at start-up.",
    ),
    "policy": Text(
        "A field of `Policy` has an impossible value, for example `lease=0`.",
        NO_CLIENT, "Correct the value; the message says what is possible. [Policy](../reference/policy.md) lists all "
        "fields.", "Make policies at import time.",
    ),
    "store-url": Text(
        "No store knows the scheme of the URL, or the URL lacks a part, such as the name of the database.",
        NO_CLIENT, "Correct the URL. [Stores](../reference/stores.md) lists every form.",
        "Run `retrysafe doctor URL` in your deployment.",
    ),
    "missing-driver": Text(
        "The driver of the store or the framework of the adapter is not installed.",
        NO_CLIENT, "Install the extra that the message names, for example `pip install 'retrysafe[postgres]'`.",
        "Put the extra into your requirements.",
    ),
    "names": Text(
        "A table name, schema or prefix has characters that are not allowed there.",
        NO_CLIENT, "Use letters, digits and underscores.", "Take these names from your settings, never from a user.",
    ),
    "templates": Text(
        "A key template names an argument that the function does not have, names none, or contains more than names.",
        NO_CLIENT, "Correct the template: `@safe.once(\"receipt:{order_id}\")` names arguments in braces.",
        "The template is checked when the function is decorated.",
    ),
    "scope": Text(
        "The scope is `None` or empty. Every key belongs to an account or tenant; otherwise two customers could read "
        "each other's answers.",
        "Nothing. Over HTTP the answer is `misconfigured`, and nothing ran.",
        "Return the id of the authenticated account from `scope`. Never use a header that the client can choose. For a "
        "service with one tenant, return a constant.",
        "Let authentication refuse anonymous callers before the claim.",
    ),
    "arguments": Text(
        "An argument of a guarded call cannot be compared, for example an open file or a database session.",
        NO_CLIENT, "Name the argument in `ignore=`, or pass plain data such as an id.",
        "Pass ids instead of live objects.",
    ),
    "results": Text(
        "The function ran, but its result cannot be stored. The key is marked done, and the function does not run "
        "again; in a transaction, everything was rolled back.",
        "Look the result up.", "Return plain data, a dataclass or a pydantic model, or pass `codec=`.",
        "Call each guarded function once in a test.",
    ),
    "operations": Text(
        "An operation is declared or called wrongly. The message says how.",
        NO_CLIENT, "Correct the declaration. [Operations](../howto/operations.md) shows each form.",
        "Declare operations at import time.",
    ),
    "colours": Text(
        "A sync function, pool or client was given where an async one is needed, or the reverse.",
        NO_CLIENT, "Use the variant that the message names.", "Use one style in one process.",
    ),
    "nested-transaction": Text(
        "The connection is already in a transaction. Work and answer could not be committed together.",
        "Nothing. Nothing ran.", "Let retrysafe open the outermost transaction. Use savepoints inside.",
        "With Django, do not call such a view inside `atomic()`. `ATOMIC_REQUESTS` may stay on.",
    ),
    "transaction-split": Text(
        "Your code committed or rolled back inside the block of retrysafe. What it committed stays. The key is "
        "uncertain.",
        "Do not use a new key: part of the work may be committed.",
        "Resolve the key, then remove the commit or rollback. See [Resolve unknown outcomes](../howto/resolving.md).",
        "Leave commit and rollback to retrysafe. Use a savepoint inside the block.",
    ),
    "not-same-database": Text(
        "The connection you passed leads to another database than the store. The answer and the work could not commit "
        "together. Nothing was done.",
        NO_CLIENT, "Pass a connection to the store's own database, or open the store on yours.",
        "Configure both from one URL.",
    ),
    "no-answer": Text(
        "A transaction block ended without an answer. Everything was rolled back.",
        "Nothing happened.", "Set `tx.answer = Answer(...)` before the block ends.",
        "Call each block once in a test.",
    ),
    # Stores -----------------------------------------------------------------------------------------
    "store": Text(
        "This is the base class of every error of the store.",
        SAME_KEY, "See the page of the subclass.", "See the page of the subclass.",
    ),
    "store-outage": Text(
        "The store did not answer. The subclass says whether anything may have been done: "
        "[`StoreUnavailable`](store-unavailable.md) or [`StoreUnclear`](store-unclear.md).",
        SAME_KEY, "Bring the store back.", "See the page of the subclass.",
    ),
    "store-unavailable": Text(
        "The claim could not be made: the store could not be reached, or it refused. No handler runs without its "
        "claim, so this request was not carried out. An earlier request with the same key may have been: only the "
        "store knows, and it cannot be asked. That is why `safe_new_key` is no.\n\n"
        "If the store stops answering later, while or after the handler runs, the answer is another one: "
        "[`outcome-unrecorded`](outcome-unrecorded.md) for a handler, [`not-finished`](not-finished.md) for an "
        "operation.",
        SAME_KEY + " Do not make a new key, unless you know that this key was never sent before.",
        "Bring the store back; claims are accepted again within about two seconds. Run `retrysafe doctor URL`. Look at "
        "connection limits and pool sizes.",
        "Give the store redundancy, and a pool as large as the number of requests that claim at once.",
    ),
    "store-unreachable": Text(
        "No connection to the store can be made. New claims are refused at once until a probe gets through.",
        SAME_KEY, "Bring the store back. Check address, firewall and credentials.",
        "Give the store redundancy.",
    ),
    "store-unclear": Text(
        "The connection was lost after an operation was sent, and sending it again did not get through either. The "
        "operation may have been carried out.",
        SAME_KEY, "Bring the store back. Keys that lapse meanwhile may need to be resolved.",
        "Give the store redundancy.",
    ),
    "commit-unclear": Text(
        "The connection was lost at the commit of a [transaction](../howto/transactions.md), and the database could "
        "not be asked afterwards. The work may have been committed. Over HTTP the answer is "
        "[`outcome-unknown`](outcome-unknown.md).",
        "Send the same request with the same key again. The database knows the outcome: the retry gets the stored "
        "answer, or the work runs.",
        "Bring the database back. There is nothing to resolve by hand.",
        "Give the database redundancy.",
    ),
    "step-not-recorded": Text(
        "An operation ran a step, and the store refused to record it, for example because the journal is too large for "
        "DynamoDB. Earlier recovery points are kept. Over HTTP the answer is [`not-finished`](not-finished.md).",
        SAME_KEY + " Never use a new key: the finished steps would run again.",
        "Read the reason in the log, and correct it: the next attempt sends the same step again, with the same key for "
        "the other system.",
        "Use an operation with fewer steps, or steps that return less.",
    ),
    "schema-missing": Text(
        "The tables do not exist, or they lack a column that this release needs.",
        SAME_KEY, "Run `retrysafe migrate URL` with this release. Older processes keep working meanwhile.",
        "Run `retrysafe migrate` as a step of each deployment. [Upgrade](../howto/upgrading.md) has the order.",
    ),
    "schema-refused": Text(
        "A table that the applied migrations made is missing, or the schema belongs to a release that is more than one "
        "ahead. Nothing was changed.",
        SAME_KEY, "A missing table: restore it from a backup, or accept what is lost with it: "
        "`retrysafe migrate URL --recreate TABLE`. A schema that is too new: upgrade retrysafe in this place.",
        "Upgrade one release at a time. Run `retrysafe doctor` after restoring a database. "
        "[Upgrade](../howto/upgrading.md#when-the-schema-does-not-fit) has the cases.",
    ),
    "corrupt-record": Text(
        "A stored record cannot be read: it is damaged, or sealed with a key that is not in the key ring. Nothing ran.",
        "Retry later with the same key. Never use a new key: the work may have happened.",
        "Put the missing key back into the key ring, or restore the record from a backup. "
        "[Resolve unknown outcomes](../howto/resolving.md) describes the last resort.",
        "Keep old keys in the ring for as long as the retention. See [Encrypt stored data](../howto/encryption.md).",
    ),
    "writes-refused": Text(
        "DynamoDB refused the transaction: a condition of one of your own writes was not met. Nothing was written.",
        "Handle it as you handle your own conflict: the condition was yours.",
        "Nothing, unless the rate rises.", "Nothing to prevent: conditions exist to refuse.",
    ),
    # The client -------------------------------------------------------------------------------------
    "retries": Text(
        "A field of `Retries` has an impossible value.", NO_CLIENT,
        "Correct the value; the message says what is possible.", "Make `Retries` at import time.",
    ),
    "unrepeatable-body": Text(
        "The body is a stream, which can be sent only once, so it could not be retried. Nothing was sent.",
        "Pass bytes, raise `Retries(max_body=…)`, or allow one attempt with `Retries(streams=\"once\")`.",
        "Nothing.", "Pass bytes.",
    ),
    "key-too-old": Text(
        "A named operation was first sent so long ago that the server may have forgotten its key. Sending it again "
        "could run it a second time, so nothing was sent.",
        "Find out whether the operation was carried out. Then use a new operation name, or raise `Retries(key_life=…)` "
        "if the server keeps keys longer.",
        "Publish how long your server keeps keys.", "Retry within the server's retention.",
    ),
}  # fmt: skip
