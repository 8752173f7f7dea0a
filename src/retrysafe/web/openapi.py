"""What an OpenAPI document says about a protected route, as plain dictionaries.

A framework only has to say which of its operations are protected, and how (`ProtectionSpec`). `describe` then adds the
key's header, our problem answers, the replay header and the policy. Doing it twice changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from retrysafe.policy import DAY, HOUR, MINUTE, Policy
from retrysafe.web import problems
from retrysafe.web.key_header import HEADER, KeyRule
from retrysafe.web.problems import Codes, Problem

Strength = Literal["guard", "operation", "transaction"]
Json = dict[str, Any]

EXTENSION = "x-idempotency"
PROBLEM_TYPE = "application/problem+json"
EXAMPLE = "8e03978e-40d5-43dd-bc93-6894a57f9324"

KEY_PATTERN = r'^(?:[!#-+\--~][!-+\--~]{0,254}|"(?:[!#-\[\]-~]|\\["\\]){1,255}")$'
"""What core/keys.py takes: bare without a comma, or an RFC 8941 string; both without spaces."""

_ALWAYS_PROBLEMS = (problems.MALFORMED, problems.MISMATCH, problems.IN_PROGRESS, problems.TOO_LARGE, problems.GONE)
_FAILURE_PROBLEMS = (problems.UNKNOWN, problems.FAILED, problems.UNAVAILABLE)
_WITH_RETRY_AFTER = frozenset({"in_progress", "unavailable", "quota"})

_METHODS = ("post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class ProtectionSpec:
    """How one operation is protected."""

    policy: Policy
    strength: Strength = "guard"
    codes: Codes = field(default_factory=Codes)
    header: str = HEADER
    key_rule: KeyRule = field(default_factory=KeyRule)
    quota: bool = False


def describe_operation(operation: Json, how: ProtectionSpec, problem: Json) -> None:
    """Add everything to one operation object. `problem` is the schema of our problems, or a reference to it."""
    parameters = operation.setdefault("parameters", [])
    parameters[:] = [one for one in parameters if not _is_header(one, how.header)]
    parameters.append(build_key_parameter(how))
    responses = operation.setdefault("responses", {})
    for status, kinds in problem_statuses(how).items():
        _add_problem(responses.setdefault(str(status), {}), kinds, problem)
    for status, response in responses.items():
        if status.startswith("2"):
            response.setdefault("headers", {}).update(build_success_headers(how))
    operation[EXTENSION] = build_extension(how)
    text = describe_policy(how)
    told = operation.get("description", "")
    if text not in told:
        operation["description"] = f"{told}\n\n{text}".strip()


def list_operations(schema: Json) -> list[tuple[str, str, Json]]:
    """Every operation of a document that may be protected: method, path, operation object."""
    return [
        (method.upper(), path, item[method])
        for path, item in schema.get("paths", {}).items()
        for method in _METHODS
        if method in item
    ]


def build_key_parameter(how: ProtectionSpec) -> Json:
    return {
        "name": how.header,
        "in": "header",
        "required": how.policy.mode == "required",
        "description": "One random key per logical operation; the same key with each retry of it. Bare, or as a "
        "quoted string.",
        "schema": _key_schema(how.key_rule),
        "example": EXAMPLE,
    }


def _key_schema(rule: KeyRule) -> Json:
    if rule.uuid:
        return {"type": "string", "format": "uuid"}
    schema: Json = {"type": "string", "pattern": KEY_PATTERN}
    return schema | ({"minLength": rule.min_length} if rule.min_length > 1 else {})


def problem_statuses(how: ProtectionSpec) -> dict[int, list[Problem]]:
    """Which of our answers a client may get, by status."""
    if how.policy.mode == "observe":
        return {}
    kinds = [problems.MISSING] if how.policy.mode == "required" else []
    kinds += [*_ALWAYS_PROBLEMS, *([problems.QUOTA] if how.quota else []), *_FAILURE_PROBLEMS]
    found: dict[int, list[Problem]] = {}
    for kind in kinds:
        found.setdefault(getattr(how.codes, kind.code), []).append(kind)
    return found


def _add_problem(response: Json, kinds: list[Problem], problem: Json) -> None:
    titles = "; ".join(kind.title for kind in kinds)
    told = response.get("description", "")
    if titles not in told:
        response["description"] = f"{told}; or: {titles}" if told else titles
    response.setdefault("content", {})[PROBLEM_TYPE] = {"schema": problem}
    headers = response.setdefault("headers", {})
    headers["Link"] = {"description": "Where this problem is explained", "schema": {"type": "string"}}
    if any(kind.code in _WITH_RETRY_AFTER for kind in kinds):
        headers["Retry-After"] = {"description": "Seconds until a retry is worth it", "schema": {"type": "integer"}}


def build_success_headers(how: ProtectionSpec) -> Json:
    headers: Json = {
        "Idempotent-Replayed": {
            "description": "`true` when this is the stored answer of an earlier request with the same key",
            "schema": {"type": "string", "enum": ["true"]},
        }
    }
    if how.policy.mode == "generate":
        headers[how.header] = {"description": "The key minted for this request", "schema": {"type": "string"}}
    return headers


def build_extension(how: ProtectionSpec) -> Json:
    """The policy for machines: what a client library or a gateway may want to know."""
    policy = how.policy
    return {
        "header": how.header,
        "mode": policy.mode,
        "strength": how.strength,
        "busy": policy.busy,
        "failures": policy.failures if isinstance(policy.failures, str) else "custom",
        "retention_seconds": None if math.isinf(policy.retention) else int(policy.retention),
        "replay_header": "Idempotent-Replayed",
    }


def describe_policy(how: ProtectionSpec) -> str:
    """The policy for people."""
    policy = how.policy
    if policy.mode == "observe":
        return f"**Idempotency**: `{how.header}` is not honoured here yet, only counted."
    must = {"required": "Send", "optional": "You may send", "generate": "Send"}[policy.mode]
    return (
        f"**Idempotency**: {must} a new `{how.header}` with each new request, and the same one with each retry. "
        f"A retry gets the first answer again, {format_duration(policy.retention)}, with `Idempotent-Replayed: true`."
    )


def format_duration(seconds: float) -> str:
    if math.isinf(seconds):
        return "for ever"
    for name, unit in (("days", DAY), ("hours", HOUR), ("minutes", MINUTE)):
        if seconds >= 2 * unit and seconds % unit == 0:
            return f"for {seconds // unit:.0f} {name}"
    return f"for {seconds:g} seconds"


PROBLEM_SCHEMA: Json = {
    "title": "Problem",
    "description": "RFC 9457 problem details, with what to do next",
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri", "description": "Which problem this is; it does not change"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "retry_same_key": {"type": "boolean", "description": "Sending it again with the same key is worth it"},
        "safe_new_key": {"type": "boolean", "description": "It surely did not happen: a new key does no harm"},
    },
    "required": ["type", "title", "status", "detail", "retry_same_key", "safe_new_key"],
}


def reference_problem(schema: Json) -> Json:
    """Put our problem among a document's components, as `Problem` unless that name is taken; a reference to it."""
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    name = "Problem" if schemas.get("Problem", PROBLEM_SCHEMA) == PROBLEM_SCHEMA else "IdempotencyProblem"
    schemas[name] = PROBLEM_SCHEMA
    return {"$ref": f"#/components/schemas/{name}"}


def _is_header(parameter: Json, name: str) -> bool:
    return parameter.get("in") == "header" and parameter.get("name", "").lower() == name.lower()
