"""The OpenAPI description of a protected route, as plain dictionaries.

An adapter says which operations are protected, and how (`ProtectionSpec`). `describe_operation` adds the key's header,
our problem answers, the replay header and the policy. Calling it twice changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from retrysafe.engine.problem_documents import Problem
from retrysafe.policy import DAY, HOUR, MINUTE, Policy
from retrysafe.web import problems
from retrysafe.web.capture import REPLAYED_HEADER
from retrysafe.web.key_header import DEFAULT_HEADER, KeyRule
from retrysafe.web.problems import Codes

Strength = Literal["guard", "operation", "transaction"]
Json = dict[str, Any]

EXTENSION = "x-idempotency"
PROBLEM_TYPE = "application/problem+json"
EXAMPLE_KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"

KEY_PATTERN = r'^(?:[!#-+\--~][!-+\--~]{0,254}|"(?:[!#-\[\]-~]|\\["\\]){1,255}")$'
"""What core/keys.py accepts: bare without a comma, or an RFC 8941 string; both without spaces."""

_ALWAYS_PROBLEMS = (problems.MALFORMED, problems.MISMATCH, problems.IN_PROGRESS, problems.TOO_LARGE, problems.GONE)
_FAILURE_PROBLEMS = (problems.UNKNOWN, problems.FAILED, problems.UNAVAILABLE)
_WITH_RETRY_AFTER = frozenset({"in_progress", "unavailable", "quota"})

_WRITE_METHODS = ("post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class ProtectionSpec:
    """How one operation is protected."""

    policy: Policy
    strength: Strength = "guard"
    codes: Codes = field(default_factory=Codes)
    header: str = DEFAULT_HEADER
    key_rule: KeyRule = field(default_factory=KeyRule)
    quota: bool = False


def describe_operation(operation: Json, spec: ProtectionSpec, problem: Json) -> None:
    """Complete one operation object. `problem` is the schema of our problems, or a reference to it."""
    parameters = operation.setdefault("parameters", [])
    parameters[:] = [one for one in parameters if not _is_header(one, spec.header)]
    parameters.append(build_key_parameter(spec))
    responses = operation.setdefault("responses", {})
    for status, kinds in problem_statuses(spec).items():
        _add_problem(responses.setdefault(str(status), {}), kinds, problem)
    for status, response in responses.items():
        if status.startswith("2"):
            response.setdefault("headers", {}).update(build_success_headers(spec))
    operation[EXTENSION] = build_extension(spec)
    text = describe_policy(spec)
    description = operation.get("description", "")
    if text not in description:
        operation["description"] = f"{description}\n\n{text}".strip()


def list_operations(schema: Json) -> list[tuple[str, str, Json]]:
    """Every operation of a document with a write method: method, path, operation object."""
    return [
        (method.upper(), path, item[method])
        for path, item in schema.get("paths", {}).items()
        for method in _WRITE_METHODS
        if method in item
    ]


def build_key_parameter(spec: ProtectionSpec) -> Json:
    return {
        "name": spec.header,
        "in": "header",
        "required": spec.policy.mode == "required",
        "description": "One random key per logical operation; the same key with each retry of it. Bare, or as a "
        "quoted string.",
        "schema": _key_schema(spec.key_rule),
        "example": EXAMPLE_KEY,
    }


def _key_schema(rule: KeyRule) -> Json:
    if rule.uuid:
        return {"type": "string", "format": "uuid"}
    schema: Json = {"type": "string", "pattern": KEY_PATTERN}
    return schema | ({"minLength": rule.min_length} if rule.min_length > 1 else {})


def problem_statuses(spec: ProtectionSpec) -> dict[int, list[Problem]]:
    """Our own answers that a client may get, by status."""
    if spec.policy.mode == "observe":
        return {}
    kinds = [problems.MISSING] if spec.policy.mode == "required" else []
    kinds += [*_ALWAYS_PROBLEMS, *([problems.QUOTA] if spec.quota else []), *_FAILURE_PROBLEMS]
    found: dict[int, list[Problem]] = {}
    for kind in kinds:
        found.setdefault(getattr(spec.codes, kind.code), []).append(kind)
    return found


def _add_problem(response: Json, kinds: list[Problem], problem: Json) -> None:
    titles = "; ".join(kind.title for kind in kinds)
    description = response.get("description", "")
    if titles not in description:
        response["description"] = f"{description}; or: {titles}" if description else titles
    response.setdefault("content", {})[PROBLEM_TYPE] = {"schema": problem}
    headers = response.setdefault("headers", {})
    headers["Link"] = {"description": "Where this problem is explained", "schema": {"type": "string"}}
    if any(kind.code in _WITH_RETRY_AFTER for kind in kinds):
        headers["Retry-After"] = {"description": "Seconds until a retry is worth it", "schema": {"type": "integer"}}


def build_success_headers(spec: ProtectionSpec) -> Json:
    headers: Json = {
        REPLAYED_HEADER: {
            "description": "`true` when this is the stored answer of an earlier request with the same key",
            "schema": {"type": "string", "enum": ["true"]},
        }
    }
    if spec.policy.mode == "generate":
        headers[spec.header] = {"description": "The key minted for this request", "schema": {"type": "string"}}
    return headers


def build_extension(spec: ProtectionSpec) -> Json:
    """The policy for machines, such as client libraries and gateways."""
    policy = spec.policy
    return {
        "header": spec.header,
        "mode": policy.mode,
        "strength": spec.strength,
        "busy": policy.busy,
        "failures": str(policy.failures) if isinstance(policy.failures, str) else "custom",
        "retention_seconds": None if math.isinf(policy.retention) else int(policy.retention),
        "replay_header": REPLAYED_HEADER,
    }


def describe_policy(spec: ProtectionSpec) -> str:
    """The policy in words."""
    policy = spec.policy
    if policy.mode == "observe":
        return f"**Idempotency**: `{spec.header}` is not honoured here yet, only counted."
    must = {"required": "Send", "optional": "You may send", "generate": "Send"}[policy.mode]
    return (
        f"**Idempotency**: {must} a new `{spec.header}` with each new request, and the same one with each retry. "
        f"A retry gets the first answer again, {format_duration(policy.retention)}, with `{REPLAYED_HEADER}: true`."
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
    """Add our problem schema to the components, as `Problem` unless that name is taken. Returns a reference."""
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    name = "Problem" if schemas.get("Problem", PROBLEM_SCHEMA) == PROBLEM_SCHEMA else "IdempotencyProblem"
    schemas[name] = PROBLEM_SCHEMA
    return {"$ref": f"#/components/schemas/{name}"}


def _is_header(parameter: Json, name: str) -> bool:
    return parameter.get("in") == "header" and parameter.get("name", "").lower() == name.lower()
