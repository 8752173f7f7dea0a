"""The safeguards of the console. Each is a text of a source file, what is left when it is taken out, and a test that
fails then. test_safeguards.py takes each of them out."""

from __future__ import annotations

from typing import NamedTuple

NOTHING = "if False:"


class Safeguard(NamedTuple):
    name: str
    file: str
    """Below src/retrysafe."""
    text: str
    without: str
    test: str
    """A test file, and an expression for `-k`."""


CONSOLE, CSRF, VISIT = "console/console.py", "console/csrf.py", "console/visit.py"
KEYS, BULK, JOBS = "console/actions/keys.py", "console/actions/bulk.py", "console/actions/jobs.py"
LOOPBACK, RENDERING, PAGE = "console/loopback.py", "console/rendering.py", "console/templates/page.html"
DJANGO, ADMIN = "console/on_django.py", "console/on_django_admin.py"
SECURITY, ACTIONS, ATTACKS, ACCESS = "test_security.py", "test_actions.py", "test_attacks.py", "test_access.py"
LINK, HOSTILE, SERVED, ON_DJANGO = "test_loopback.py", "test_hostile.py", "test_served.py", "test_django.py"

SAFEGUARDS = (
    # Who asks
    Safeguard(
        "session", CONSOLE, "if operator is None:", 'operator = operator or Operator("anybody")\n        ' + NOTHING,
        f"{SECURITY} without_a_session",
    ),
    Safeguard(
        "an operator and nothing else", CONSOLE,
        "if not isinstance(operator, Operator) or not (isinstance(operator.name, str) and operator.name.strip()):",
        NOTHING, f"{SECURITY} no_operator",
    ),
    Safeguard("not built without authenticate", CONSOLE, "if authenticate is None or not callable(authenticate):",
              NOTHING, f"{SECURITY} not_built"),
    Safeguard("one-time link", LOOPBACK, "            self._tokens.discard(found)\n", "", f"{LINK} link"),
    Safeguard("token of the link", LOOPBACK, "if not found or len(", "if len(", f"{LINK} wrong_token"),
    Safeguard("session of the link", LOOPBACK, "if self._login.authenticate(request) is None:", NOTHING,
              f"{LINK} link_works_once"),
    Safeguard("name of this machine", LOOPBACK, "if find_host(request)[0] not in LOCAL_NAMES:", NOTHING,
              f"{LINK} host"),
    Safeguard("cookie of the session", LOOPBACK, "; HttpOnly; SameSite=Strict", "", f"{LINK} wrong_token"),
    # Forms of other sites
    Safeguard("forgery is asked for", CONSOLE, "if found[0].acts:", NOTHING, f"{SECURITY} another_site"),
    Safeguard("Sec-Fetch-Site", CSRF, 'if site is not None and site != "same-origin":', NOTHING,
              f"{SECURITY} another_site"),
    Safeguard("Origin", CSRF, 'if site is None and not _is_own(origin or "", request, origins):', NOTHING,
              f"{SECURITY} another_site"),
    Safeguard("token", CSRF, "if not token or not hmac.compare_digest(token.encode(), request.field(FIELD).encode()):",
              NOTHING, f"{SECURITY} its_token"),
    Safeguard("no token is no token", CSRF, "if not token or not", "if not", f"{ACCESS} no_cookie"),
    Safeguard("a token is long", CSRF, 'return found if _TOKEN.fullmatch(found) else ""', "return found",
              f"{ACCESS} short_token"),
    Safeguard("cookie of the token", CSRF, "; HttpOnly; SameSite=Strict", "", f"{SECURITY} cookie"),
    Safeguard("Secure", CSRF, '"; Secure" if secure else ""', '""', f"{ACCESS} secure"),
    # Read-only
    Safeguard("read-only at the route", CONSOLE, "(*PAGES, *ACTIONS) if self.actions else PAGES", "(*PAGES, *ACTIONS)",
              f"{SECURITY} without_actions"),
    Safeguard("read-only in may", VISIT, "if action != LOOK and not (self.console.actions and self.may(LOOK, record)):",
              "if action != LOOK and not self.may(LOOK, record):", f"{SECURITY} draws_no_form"),
    # Who may
    Safeguard("authorize of the page", CONSOLE, "        visit.check(LOOK)\n", "", f"{SECURITY} may_not_look"),
    Safeguard("look before acting", VISIT, "self.console.actions and self.may(LOOK, record)", "self.console.actions",
              f"{ATTACKS} may_not_see"),
    Safeguard("authorize of a record", VISIT,
              "or record.namespace not in self.console.namespaces or not self.may(LOOK, record):",
              "or record.namespace not in self.console.namespaces:", f"{SECURITY} depends_on_the_record"),
    Safeguard("namespace of a record", VISIT, "or record.namespace not in self.console.namespaces or", "or",
              f"{SECURITY} another_application"),
    Safeguard("authorize of an action", VISIT, "            self.check(action, record)\n", "",
              f"{ACCESS} action_with_the_record"),
    Safeguard("observed records are only shown", VISIT, "if record.namespace != self.session.namespace:", NOTHING,
              f"{ACCESS} observed"),
    Safeguard("authorize of a list", "console/pages/keys.py",
              'and on_lapse in ("", each.on_lapse) and visit.may(LOOK, each)', 'and on_lapse in ("", each.on_lapse)',
              f"{SECURITY} depends_on_the_record"),
    Safeguard("authorize of an exact key", "console/pages/keys.py",
              "if each.key == wanted.key and visit.may(LOOK, each))", "if each.key == wanted.key)",
              f"{ACCESS} lists_show_only"),
    Safeguard("authorize of runs", "console/pages/operations.py", " and visit.may(LOOK, run))", ")",
              f"{ACCESS} lists_show_only"),
    Safeguard("authorize of dead runs", "console/pages/outbox.py",
              "(each for each in filter_dead(search) if visit.may(LOOK, each))", "filter_dead(search)",
              f"{ACCESS} lists_show_only"),
    Safeguard("authorize of jobs", "console/pages/outbox.py", " and visit.may(LOOK, each)]", "]",
              f"{ACCESS} lists_show_only"),
    Safeguard("authorize of bulk rows, shown", BULK,
              "allowed = [each for each in choice.chosen if visit.may(form.verb, each.record)]\n    return visit",
              "allowed = list(choice.chosen)\n    return visit", f"{ATTACKS} in_bulk"),
    Safeguard("authorize of bulk rows, changed", BULK,
              "choice = _drop_forbidden(visit, form, form.bulk.choose_again(as_of, rows))",
              "choice = form.bulk.choose_again(as_of, rows)", f"{ACTIONS} may_not_change"),
    Safeguard("authorize of bulk", BULK, "    visit.check(verb)\n", "", f"{ACCESS} whole_action"),
    Safeguard("authorize of a job", JOBS, "    visit.check(action.name, staged)\n", "", f"{ACCESS} may_not_drop"),
    Safeguard("authorize of bulk jobs, shown", JOBS,
              "chosen = [staged for staged in matching if visit.may(action.name, staged)][:cap]",
              "chosen = matching[:cap]", f"{ACCESS} may_not_drop"),
    Safeguard("authorize of bulk jobs, changed", JOBS,
              "chosen = [staged for staged in found if visit.may(action.name, staged)]", "chosen = found",
              f"{ACCESS} may_not_drop"),
    Safeguard("staff only", DJANGO, "user.is_authenticated and user.is_active and user.is_staff",
              "user.is_authenticated and user.is_active", f"{ON_DJANGO} outside"),
    Safeguard("superusers act", ADMIN, "return action == LOOK or may_act(operator.user)", "return True",
              f"{ON_DJANGO} admin"),
    Safeguard("login of the admin site", ADMIN, "guarded = self.admin_site.admin_view(view)", "guarded = view",
              f"{ON_DJANGO} outside"),
    # What is stored never becomes markup
    Safeguard("autoescape", RENDERING, "autoescape=True", "autoescape=False", f"{HOSTILE} elements"),
    Safeguard("escaped diagrams", "console/step_diagram.py",
              "label = escape(f", "label = Markup(f", f"{HOSTILE} diagram"),
    Safeguard("policy of pages", VISIT, ', ("content-security-policy", build_policy(nonce))]', "]",
              f"{SECURITY} strict_page"),
    Safeguard("scripts by nonce", RENDERING, "script-src 'nonce-{nonce}'", "script-src 'self'",
              f"{SECURITY} strict_page"),
    Safeguard("trusted types", RENDERING, '"require-trusted-types-for \'script\'; trusted-types htmx"', '""',
              f"{SECURITY} strict_page"),
    Safeguard("no frames, no base, own forms", RENDERING,
              "\"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \"", '""', f"{SECURITY} strict_page"),
    Safeguard("headers of every answer", CONSOLE, "return harden(response)", "return response",
              f"{ATTACKS} headers"),
    Safeguard("hx-csp", PAGE, """<script src="{{ asset('hx-csp.min.js') }}" nonce="{{ nonce }}"></script>""", "",
              "../browser/test_console.py injected_all_the_same"),
    Safeguard("files are looked up", RENDERING,
              '{path.name: path for path in (HERE / "static").iterdir() if path.suffix in CONTENT_TYPES}.get(name)',
              '(HERE / "static" / name)', f"{ACCESS} file"),
    # What an operator was shown, and its trace
    Safeguard("reveal is audited", KEYS, "with visit.session.act(entry):", "if True:", f"{ACTIONS} revealed_as_text"),
    Safeguard("attempt that was shown", KEYS, "if seen != (record.attempt, record.started):", NOTHING,
              f"{ACTIONS} not_shown_is_not_touched"),
    Safeguard("life that was shown", KEYS, "if seen != (record.attempt, record.started):",
              "if seen[0] != record.attempt:", f"{ATTACKS} claimed_anew"),
    Safeguard("run that was shown", "console/actions/runs.py", "    check_seen(visit, record)\n", "",
              f"{ACCESS} run_that_was_not_shown"),
    Safeguard("attempt of a bulk row", "operators/bulk.py", "if record.attempt != attempt:", NOTHING,
              f"{ACTIONS} another_attempt"),
    Safeguard("as-of time of a bulk row", "operators/bulk.py",
              "if not self._wanted.matches(record, self._action.state, as_of):", NOTHING,
              f"{ACTIONS} outside_the_filter"),
    Safeguard("namespace of a bulk row", "operators/bulk.py",
              "if record is None or record.namespace != self._session.namespace:", "if record is None:",
              f"{ACCESS} another_application"),
    Safeguard("fence of a bulk row", "operators/bulk.py", "bool(self._session.execute(op))",
              "bool(self._session.execute(type(op)(op.id, self._session.execute(Lookup(op.id)).record.fence, 'x')))",
              f"{ACCESS} fence"),
    Safeguard("cap of rows", BULK, "if None in found or not 1 <= len(rows) <= cap:", "if None in found:",
              f"{ACTIONS} cap"),
    Safeguard("letter that was shown", JOBS, 'if describe_letter(staged) == f"{id}:{died}":',
              "if staged.job.id == id:", f"{ATTACKS} died_again"),
    Safeguard("audit rows stay", "operators/key_actions.py", "if record.kind == AUDIT_KIND:", NOTHING,
              f"{ATTACKS} emptied"),
    Safeguard("a reason", "operators/session.py", "if not because:", NOTHING, f"{ACTIONS} wrong_form"),
    # Bodies
    Safeguard("cut forms on ASGI", "console/asgi.py", "return CUT_SHORT  # the client went away", "return body",
              f"{SERVED} cut"),
    Safeguard("cut forms on WSGI", "console/wsgi.py", "return body if len(body) == length else CUT_SHORT",
              "return body", f"{SERVED} cut"),
    Safeguard("cut forms on Django", DJANGO, "return CUT_SHORT if declared and length != int(declared) else None",
              "return None", f"{ON_DJANGO} forged"),
    Safeguard("large forms on ASGI", "console/asgi.py", "if len(body) > MAX_BODY_BYTES:", NOTHING,
              f"{SERVED} large"),
    Safeguard("large forms on WSGI and Django", "console/headers.py",
              "len(declared) > len(str(MAX_BODY_BYTES)) or int(declared or 0) > MAX_BODY_BYTES", "False",
              f"{SERVED} large"),
    Safeguard("number of fields", "console/messages.py", ", max_num_fields=MAX_FIELDS", "", f"{LINK} one_link"),
)  # fmt: skip
