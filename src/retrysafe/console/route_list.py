"""All addresses of the console."""

from __future__ import annotations

from retrysafe.console.actions import bulk as bulk_actions
from retrysafe.console.actions import jobs as job_actions
from retrysafe.console.actions import keys as key_actions
from retrysafe.console.actions import runs as run_actions
from retrysafe.console.pages import assets, audit, doctor, keys, now, operations, outbox, record, rollout, traffic
from retrysafe.console.routing import ConsoleRoute

PAGES = (
    ConsoleRoute("GET", "/", now.show_now),
    ConsoleRoute("GET", "/keys", keys.show_keys),
    ConsoleRoute("GET", "/keys/{id}", record.show_record),
    ConsoleRoute("GET", "/operations", operations.show_operations),
    ConsoleRoute("GET", "/outbox", outbox.show_outbox),
    ConsoleRoute("GET", "/rollout", rollout.show_rollout),
    ConsoleRoute("GET", "/rollout.json", rollout.export_rollout),
    ConsoleRoute("GET", "/doctor", doctor.show_doctor),
    ConsoleRoute("GET", "/audit", audit.show_audit),
    ConsoleRoute("GET", "/requests", traffic.show_requests),
    ConsoleRoute("GET", "/static/{name}", assets.send_asset),
)

ACTIONS = (
    ConsoleRoute("POST", "/keys/{id}/resolve", key_actions.resolve),
    ConsoleRoute("POST", "/keys/{id}/release", key_actions.release),
    ConsoleRoute("POST", "/keys/{id}/forget", key_actions.forget),
    ConsoleRoute("POST", "/keys/{id}/reveal", key_actions.reveal),
    ConsoleRoute("POST", "/keys/{id}/{verb}", run_actions.act_on_run_of),
    ConsoleRoute("POST", "/bulk", bulk_actions.preview),
    ConsoleRoute("POST", "/bulk/confirm", bulk_actions.confirm),
    ConsoleRoute("POST", "/outbox/bulk", job_actions.preview),
    ConsoleRoute("POST", "/outbox/bulk/confirm", job_actions.confirm),
    ConsoleRoute("POST", "/outbox/{id}/{verb}", job_actions.act_on_job),
)
