"""Who asks: a bearer token is an account. Once for Django's own views, once for REST framework's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from django.http import JsonResponse
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed

TOKENS = {"alice-token": "alice", "bob-token": "bob"}


class Account(NamedTuple):
    name: str
    is_authenticated: bool = True


def of_token(request: Any) -> Account | None:
    name = TOKENS.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
    return Account(name) if name else None


def account_of(request: Any) -> str:
    """The scope of idempotency keys (RETRYSAFE["SCOPE"])."""
    name: str = request.user.name
    return name


def token_required(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def checked(request: Any, *args: Any, **kwargs: Any) -> Any:
        account = of_token(request)
        if account is None:
            return JsonResponse({"error": "who are you?"}, status=401)
        request.user = account
        return view(request, *args, **kwargs)

    return checked


class Bearer(BaseAuthentication):
    def authenticate(self, request: Any) -> tuple[Account, None]:
        account = of_token(request)
        if account is None:
            raise AuthenticationFailed
        return account, None

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"
