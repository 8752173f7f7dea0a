"""One payment, made by a plain view and by a class of REST framework."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from django.http import HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST
from rest_framework import serializers
from rest_framework.response import Response
from rest_framework.views import APIView

from examples.django_payments.accounts import token_required
from retrysafe import Key, derive
from retrysafe.web.django import idempotent
from retrysafe.web.django.drf import IdempotentMixin

# The payment provider: somebody else's system, which takes keys of its own.
charges: dict[str, dict[str, Any]] = {}


def pay(amount: int, currency: str, key: Key) -> dict[str, Any]:
    # A key of ours for the provider: if we die after this call, whoever tries again charges nothing new.
    at_provider = derive(key, "provider", "charge")
    charge = charges.setdefault(at_provider, {"id": f"ch_{uuid4().hex[:12]}", "amount": amount, "currency": currency})
    return {"id": f"pay_{uuid4().hex[:12]}", "charge": charge["id"], "amount": amount, "currency": currency}


@csrf_exempt
@require_POST
@token_required
@idempotent
def payments(request: Any) -> HttpResponse:
    given = json.loads(request.body)
    return JsonResponse(pay(given["amount"], given["currency"], request.idempotency_key), status=201)


class PaymentIn(serializers.Serializer):  # type: ignore[type-arg]  # generic only where its stubs are installed
    amount = serializers.IntegerField(min_value=1)
    currency = serializers.RegexField("^[a-z]{3}$")


class Payments(IdempotentMixin, APIView):
    """The claim is made after authentication, permissions and throttling."""

    def post(self, request: Any) -> Response:
        given = PaymentIn(data=request.data)
        given.is_valid(raise_exception=True)
        return Response(pay(**given.validated_data, key=request.idempotency_key), status=201)


@require_GET
def provider_charges(request: Any) -> HttpResponse:
    return JsonResponse(list(charges.values()), safe=False)
