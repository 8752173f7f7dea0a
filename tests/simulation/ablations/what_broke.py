"""Which ablation puts back each line of docs/explanation/what-broke.md, or why the simulation cannot meet it.

A line is named by the words that its first cell begins with. A line that a simulation cannot meet by its nature stands
under the reason; the line itself names the test on a real server, or the unit test, that holds it.
"""

from __future__ import annotations

PUT_BACK: dict[str, tuple[str, ...]] = {
    "On an event loop that other work blocks": ("an application begins however late",),
    "A recovery point moved back": ("advances without a number",),
    "A copy of a claim was granted to nobody": ("a token is granted again",),
    "The same while two releases ran side by side": ("a takeover forgets the tokens before it",),
    "The same where the caller was cancelled": ("a claim is cancelled with its caller",),
    'After an unclear claim, "connection refused"': ("a refusal ends an unclear claim",),
    "A renewal under way when its owner gave up": ("a renewal brings back what was given up",),
    "An owner believed in its lease for too long": ("a lease counts from the reply",),
    "A claim that was recognised as its own after": ("a lapsed claim runs without a lease",),
    "A foreign call began that could outlast its lease": ("a call begins that does not fit its lease",),
    "A key past its life at the provider": (
        "a key ages by the host's clock",
        "a key is sent after the provider has forgotten it",
    ),
    '"Nothing was done" and "maybe it was done"': ("unclear is taken for nothing done",),
    "A completion met a store that was away": ("a completion is sent once, and its error told as it came",),
    "The store went away while the *last advance*": ("the end of a run is reported as nothing done",),
    "A cancellation that came during a storage operation": ("a cancellation is swallowed",),
    "a process stopped between its claim and its handler": ("a call begins however late",),
    "A store that hung while a key was claimed": ("a claim that was given up is not followed up",),
    "An owner whose claim was granted unheard": ("an owner does not take back what was swept",),
    "A process was stopped for minutes (frozen, suspended) after its claim": ("a claim that was swept is left",),
    "A caller left without its key, and with a grant": ("a caller that leaves does not look back",),
    "A cancelled caller left its key behind": ("what a cancelled caller is granted late is released once",),
    "A caller was cancelled while its claim was under way": (
        "a submitted claim whose reply is lost is not followed up",
    ),
    "A claim that was withdrawn after a router's redirect": ("a withdrawal that is lost is not followed up",),
    "a first attempt under which nothing had run": ("a claim under which nothing ran binds its key",),
    "a request whose process was stopped after its claim, and which was cancelled": (
        "a request that is cancelled before it begins counts as begun",
    ),
    "A lower-case method went past": ("a lower-case method goes past",),
    "`/a%2Fb` got the answer of `/a/b`": ("an escaped slash is a slash",),
    "a router's redirect (307, 308": ("a router's redirect is stored", "every redirect is withdrawn"),
    "a body that the framework found invalid": ("an invalid body burns its key",),
    "a field with a default was added": ("a wider input is another request",),
    "a step put in front of `charge`": ("a step before the charge changes its key",),
    "a step that may have been sent was sent again with other arguments": (
        "a begun step is sent with other arguments",
    ),
    "an undo that was stuck was sent again": ("a stuck undo begins its key again",),
    "a `find` that raised": ("a find that fails means no",),
    "an input type that had changed": ("changed code uses up the attempts",),
    "a `Stop` or `Undo` that the body caught": ("an ending that the body swallows is lost",),
    "a timeout of the body's own around a step": ("a step that the body cancels is forgotten",),
    "`resume_id` and `undo_id` acted on a record of another": ("an operator's resume knows no namespaces",),
    "`operations --undo` of a run that was killed": ("an operator's undo leaves out what was sent without a trace",),
    'with `forms="current"`, other code ended a run': ("other code ends a run without the open step",),
    'with `forms="current"`, another foreign step': ("another step is sent while one is open",),
    "another `service=` for a step": ("another service is not noticed",),
    "a body that failed before it came to what had been sent": ("a run is given up and undone without its open step",),
    "the store went away between two steps of an operation": (
        "a store that goes away between two steps has done nothing",
    ),
    "a step that failed, and whose next attempt was killed": (
        "a begun step that was announced is taken for another call",
    ),
    "an operation that was accepted (202), or whose first attempt died": ("an accepted run is dropped",),
    'An operator who said "it did not happen" of a step whose key': (
        "an operator is not believed past the life of a key",
    ),
    "where the store is not in the user's database, an undo that could not bar": (
        "a conflict with a late owner is passed on as it came",
    ),
    "a finished operation whose record had expired": ("a resume begins what has expired",),
    "an operation submitted long ago and resumed by id": ("a key ages while its run waits for a worker",),
    "with receipts in another database, a local step": ("a local step before the others runs them again",),
    "a pool that was not open yet, or a client that asked again": ("every failure counts, however soon",),
    "code that did not have the announced first step": ("a step that other code did not have loses its name",),
    "a foreign step that may have been sent, declared as a *local* one": (
        "a call that became a local step is forgotten",
    ),
    "a local step with its receipt in another database was committed": (
        "a local step that became a call is forgotten",
    ),
    "A job that kills its process was begun for ever": ("a job that kills its process is begun for ever",),
    "An `enqueue` whose `send` failed": ("a sender that could not send keeps its lease",),
    "A worker without a handler for an event of the inbox": ("a worker without a handler marks the event",),
    "Jobs became dead letters after one delivery": ("a job is dead after one failure",),
    "A delivery that ended its process was tried for ever": ("a delivery that ends its process is not counted",),
    "A worker ran another application's operations": ("the completer knows no namespaces",),
}
"""Lines whose defect is put back by an ablation."""

THREADS = "threads, signals and forks: the simulation has one thread"
DRIVER = "a driver, its sockets or its SQL: the simulated store has none"
COST = "memory, CPU or the number of rows that are read: nothing goes wrong but the bill"
TEXTS = "texts, logs, links, headers and options: nothing is lost or doubled"
CONSOLE = "what an operator does by hand in the console: the simulation has no operators who send forms"
FRAMEWORK = "another framework's, queue's or broker's own code"
DATABASE = "what a real database does with a transaction that the user committed by hand"
SEALED = "what is encrypted: the simulation runs with the standard library alone, so its applications have no key ring"
STOPPED = "a process that stops in order: simulated processes are killed, which leaves more behind"
REFUSED = "a mistake in the set-up that is refused before anything runs"
PEOPLE = "what people declared or typed as they were asked to: simulated people know what their words mean"
PLAIN = "a plain function around an async one: simulated handlers are declared as what they are"
TYPES = "types of the user's own code: simulated functions take and return texts and numbers"
DELAY = "it only came later than it could: the rule about the end of a history counts in hours"
CHANCE = "two digests of two bytes that agree: one history in 65,000 would have them, and a test makes them agree"
CROWD = (
    "more than eight callers of one key who leave at once: one history in 60,000 has them, its seed is kept, and a "
    "test makes them leave"
)
BARRED = (
    "an owner that wakes up inside its transaction: the simulated database has ended that session by then, as a server "
    "with a time limit for idle transactions does, and the check of the fence stops the next one"
)

NOT_SIMULATED: dict[str, tuple[str, ...]] = {
    THREADS: (
        "One row that somebody else held stopped the heartbeat",
        "A moment in which no thread could be started",
        "`safe.close()` in a forked child",
        "A time limit by signal",
        "SIGTERM in a bulk command or in `erase`",
        "PostgreSQL, a moment in which no thread could be started",
        "A forked child never gave back a claim",
    ),
    DRIVER: (
        "two applications with a database each, one namespace",
        "Many rows that somebody else held",
        "The same on MySQL and MariaDB, where eight held rows were enough",
        "SQL Server: `retrysafe migrate` called a schema",
        "A silent Redis held a request",
        "SQLite: the time was read before the wait",
        "Redis, async: nothing but the event loop",
        "SQL Server: an id, token or run that happened to be ASCII",
        "SQL Server: `0x01 = 0x0100`",
        "PostgreSQL: the same as in the next line",
        "PostgreSQL set to repeatable read or serializable",
        "PostgreSQL: an operation that went alone after its batch",
        "MySQL, MariaDB: the same, an operation that went alone",
        "MySQL, MariaDB: the pool kept its connections",
        "Redis over TLS, async: a closed store",
        "Redis over TLS, async: a store that was closed",
        "Redis, async: a store that was closed before the task",
        "Redis, async: a store that was closed as its connection broke",
        "Redis, async, on a client of your own",
        "PostgreSQL and MongoDB, async: a store that was closed",
        "PostgreSQL: after an outage an application",
        "while the store was down every request held its thread",
        "The HTTP publisher's timeout began again",
        "PostgreSQL: of 100,000 jobs of one `order`",
        "Redis and DynamoDB counted a withdrawn record",
        "On Python 3.12 and later, a store that was passed as an object",
    ),
    COST: (
        "`keys list` read one page more than it showed",
        "Finished calls piled up behind one slow call",
        "A thousand requests to any paths filled the census",
        "the CPU of a step grew with the steps before it",
        "An idle round read every record",
        "`keys show`, `keys resolve` and `operations --show` walked",
        "where the store is not the user's database, a row for each local step",
        "A page of the console read the whole store",
        "With a million keys open at once",
        "On a large SQL store *Operations*",
        "On PostgreSQL a list of released records",
    ),
    TEXTS: (
        "A function or a tool that returned a dict",
        "`keys export --scope` that had read every record said",
        "`reconcile` printed the control characters",
        "In multiprocess mode `retrysafe_executions_active` counted",
        "The same again after one request without a key",
        "A client got 503 `store-unavailable`",
        "The client's path went into `target` as it was",
        "The log named keys, scopes and the words",
        "`safe_url` showed a password",
        "A replay's `CDN-Cache-Control` went out",
        "`KeyRule(uuid=True)` told a client",
        "A Standard Webhooks secret without padding",
        "Ten of the links in our problems",
        "an operator who knew how it had ended could not say so",
        "a client could send a key that reads like the digits",
        '`jobs.result("receipt-7")` did not find the job',
        "A cursor that was none of the store's",
        "Consumers wrote message ids",
        "The worker counted a dead letter as `later`",
        "`retrysafe keys resolve --happened --answer`",
        "A beat that met the end of its own call",
        "`reconcile` called it clean",
        "`operations --resume --because` by code that was refused",
        "a mistyped SQLite path in any command",
        "`retrysafe … \\| head` ended in `BrokenPipeError`",
        "`keys resolve --all --yes … \\| head` stopped",
        "A store that went away in the middle of a command",
        "A command that was killed left an audit row",
        "with `--scope`, `keys show` and `keys why` looked in the namespace",
        "`keys resolve --happened --answer FILE --status 99999`",
        "a key that the terminal's encoding has not",
        "`erase` and `keys forget` left the note",
        "`operations undo` ended a run whose foreign step",
        "`operations resume` refused a dead letter",
        "`keys resolve` and the console stored a body that is no JSON",
        "With a key ring, `keys resolve --happened --answer` through a URL",
        "The receipt of `erase` said",
        "`retrysafe doctor`, the gate of a deployment",
        "`--url A B` worked on B",
        "`keys export` left out records",
        "commands that act printed keys, targets and topics",
        "`operations --undo` of a finished run said",
        "`keys resolve --happened --answer` (and `safe.resolve`) stored JSON",
        "a `StopIteration` of a sync function",
        "a store that refused a journal as too large",
        "an undo, a `find` or an option that could never work",
        "`retrysafe stats` printed a target",
    ),
    CONSOLE: (
        "A form of the console whose sender went away",
        "A form in pieces that ended early",
        "`retrysafe console` printed its link",
        "The page *Requests* of the console",
        "An answer typed into the console was stored",
        'The console accepted "It did not happen"',
        "The console dropped an answer that was typed",
        "A page of the console that stayed open",
        "A bulk action of the console showed and changed",
        "`keys forget`, in the console and as a command",
        "On PostgreSQL, a reason with a NUL",
    ),
    FRAMEWORK: (
        "An answer that was sent as a view of memory",
        'FastAPI: `invalid="withdraw"` had no effect',
        "Under Django's ASGI with a plain middleware",
        "`@once`, `transactional`, tools and operations: two calls that differ only in a pydantic field",
        "a result's (or step's, or operation input's) field marked",
        "The client wrote its key into the caller's request object",
        "A key followed a redirect to another host",
        "One retried message of Kafka",
        "A message that RabbitMQ got back",
        "Procrastinate: a user's own `queueing_lock`",
        "MCP: `same_within` was an hour at least",
        "MCP: an async `scope` was used",
        "An error of a Django `on_commit` hook vanished",
        "A worker in an async application ran operations on another loop",
    ),
    DATABASE: (
        "a body committed by hand and then lost its only connection",
        "A job that a background task staged",
        "a body that committed in the middle and then raised",
        "on PostgreSQL, a body that committed in the middle",
        "a body or local step that committed by hand",
        "a body, route or local step that sent `COMMIT`",
        "a body that committed by hand and staged a job",
        "a second caller ran the body beside one that had committed by hand",
        "aiosqlite, a connection of the user's own",
        "SQLAlchemy on aiosqlite: a call that was cancelled",
        "a body that committed by hand and was then cancelled",
        "a local step that had committed by hand, and so was a dead letter",
        "a body or local step that rolled back by hand",
        'a route with `strength="transaction"` whose handler',
    ),
    SEALED: (
        "A copy of a completion that was sealed again",
        "One record that could not be decrypted",
    ),
    STOPPED: ("`aclose()` waited for a claim", "Ctrl-C just after the commit of a local step"),
    REFUSED: (
        '`cache="redis://…"` with a wrong port',
        "`retrysafe migrate` called a schema up to date",
        "A column that somebody had dropped",
        "Two receivers with one provider shared the ids",
    ),
    PEOPLE: (
        "`outbox assign` gave every job without a namespace",
        "Two operators who gave opposite",
        "`safe.operation(policy=Policy(lease=120))`",
        "an operator who gave `operations resume` a reason",
        "an operator who resumed or undid a run of unknown outcome",
        "a body that caught `OperationChanged`",
        "a client got a plain 409",
    ),
    DELAY: (
        "a client that retried through code that refused the run",
        "a request that met a running operation got 409",
        "One tenant took all places among those who wait",
        "The worker's services ran one after the other",
        "What was committed waited for the next tick",
        "A job staged in `safe.transaction`",
        "a step that the body had begun in a task of its own",
        "where the store is not in the user's database, an operator's undo of a local step",
        "after a rollback of the application to older code",
        "a worker whose policy has a lease of exactly 10 s",
    ),
    PLAIN: (
        "A handler of an inbox or of a webhook receiver",
        "an undo that is a plain function around an `async def`",
    ),
    TYPES: ("Two calls that differ only in bits",),
    CHANCE: ("code that read another step from the number of a run",),
    BARRED: ("an undo that was killed between its first commit and the receipts",),
    CROWD: ("after an outage more than eight callers of one key",),
}
"""Lines that have no ablation, by the reason."""
