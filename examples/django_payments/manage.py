"""Payments with Django: one click, one charge, however often it is sent.

    python -m examples.django_payments.manage migrate
    python -m examples.django_payments.manage runserver

    curl -i localhost:8000/payments -H 'Authorization: Bearer alice-token' -H 'Idempotency-Key: k1' \
         -H 'Content-Type: application/json' -d '{"amount": 10000, "currency": "usd"}'

Send it again: the same payment, `Idempotent-Replayed: true`, one charge in /provider/charges. /api/payments is the same
in Django REST framework.
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_payments.settings")
    execute_from_command_line(sys.argv)
