"""*Blocking.* Checks the login with Kerberos: a real KDC of MIT, and a real broker.

``.ci/kerberos`` installs what it needs: the KDC from Debian, and the package gssapi.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from deploy.broker.address import LOOPBACK, choose_ports
from deploy.broker.broker import Broker
from deploy.broker.jars import obtain_jars
from deploy.broker.layout import assign_ports, server_properties
from deploy.broker.process import SHORT_LIVED, JavaServer, data_folder, find_java
from deploy.processes import Child
from tests.support.corpora import documents
from tests.support.oracle import assert_undisturbed
from tests.support.stage import Stage

REALM = "STREAMDEDUP.TEST"
_CLIENT = "dedup"
_CONFIG = """
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = {host}:{port}
  }}
"""
_KDC_CONFIG = """
[kdcdefaults]
  kdc_listen = {host}:{port}
  kdc_tcp_listen = {host}:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    acl_file = {folder}/acl
  }}
"""


class Realm:
    """A realm with a KDC, the broker's principal, and the worker's.

    Attributes:
        config: path of krb5.conf.
        broker_keytab: key of the principal ``kafka/127.0.0.1``.
        client_keytab: key of the principal ``dedup``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self._port,) = choose_ports(1)
        names = {"realm": REALM, "host": LOOPBACK, "port": self._port, "folder": folder}
        self.config = folder / "krb5.conf"
        self.config.write_text(_CONFIG.format(**names))
        (folder / "kdc.conf").write_text(_KDC_CONFIG.format(**names))
        self.broker_keytab = folder / "broker.keytab"
        self.client_keytab = folder / "client.keytab"
        self._environment = os.environ | {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        }
        self._run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)
        for principal, keytab in (
            (f"kafka/{LOOPBACK}", self.broker_keytab),
            (_CLIENT, self.client_keytab),
        ):
            self._run("kadmin.local", "-q", f"addprinc -randkey {principal}")
            self._run("kadmin.local", "-q", f"ktadd -k {keytab} {principal}")

    @contextmanager
    def kdc(self) -> Iterator[None]:
        """Run the KDC."""
        log = self.config.with_name("kdc.log")
        with Child([_program("krb5kdc"), "-n"], log, self._environment) as child:
            time.sleep(1)
            child.check()
            yield

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(name), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def _program(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert path is not None, f"{name} is missing; .ci/kerberos installs it"
    return path


@contextmanager
def kerberos_broker(realm: Realm, folder: Path) -> Iterator[tuple[Broker, str]]:
    """Yield a broker with a listener for Kerberos, and the address of that listener."""
    ports = assign_ports(None)
    (port,) = choose_ports(1)
    properties = server_properties(
        ports, None, bind_host=LOOPBACK, log_dir=str(data_folder(folder))
    )
    login = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{realm.broker_keytab}" principal="kafka/{LOOPBACK}@{REALM}";'
    )
    listener = f",KERBEROS://{LOOPBACK}:{port}"
    properties |= {
        "listeners": properties["listeners"] + listener,
        "advertised.listeners": properties["advertised.listeners"] + listener,
        "listener.security.protocol.map": properties["listener.security.protocol.map"]
        + ",KERBEROS:SASL_PLAINTEXT",
        "listener.name.kerberos.sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.kerberos.gssapi.sasl.jaas.config": login,
        "sasl.kerberos.service.name": "kafka",
    }
    options = (*SHORT_LIVED, f"-Djava.security.krb5.conf={realm.config}")
    server = JavaServer(find_java(), obtain_jars(), folder, properties, options)
    broker = Broker(f"{LOOPBACK}:{ports.client}", server)
    try:
        broker.start()
        yield broker, f"{LOOPBACK}:{port}"
    finally:
        server.discard()


def check_records_pass(broker: Broker, address: str, folder: Path, env: dict[str, str]) -> None:
    """A worker with a keytab logs in with all its clients, and judges every record."""
    stage = Stage(broker.bootstrap, folder)
    stage.create_topics()
    stage.produce_json(documents(0, 20))
    stage.configure(kafka={"bootstrap_servers": address, "security": _security()})
    with stage.start_worker(env=env) as worker:
        stage.wait_for(20, worker)
        worker.drain()
    assert_undisturbed(stage)


def check_mistake(address: str, folder: Path, env: dict[str, str], code: int, words: str) -> None:
    """A mistake ends a command with one line and an exit code."""
    folder.mkdir()
    stage = Stage(address, folder)
    stage.configure(kafka={"bootstrap_servers": address, "security": _security()})
    done = subprocess.run(
        [sys.executable, "-m", "streamdedup", "topics", "create", "--config", str(stage.config)],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stderr)
    assert words in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def _security() -> dict[str, Any]:
    return {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}


def main() -> None:
    """Run the checks."""
    with tempfile.TemporaryDirectory(prefix="streamdedup-kerberos-") as name:
        folder = Path(name)
        for part in ("realm", "broker"):
            (folder / part).mkdir()
        realm = Realm(folder / "realm")
        env = {
            "KRB5_CONFIG": str(realm.config),
            "KRB5_CLIENT_KTNAME": str(realm.client_keytab),
            "KRB5CCNAME": f"FILE:{folder}/tickets",
        }
        with ExitStack() as kdc, ExitStack() as running:
            kdc.enter_context(realm.kdc())
            broker, address = running.enter_context(kerberos_broker(realm, folder / "broker"))
            check_records_pass(broker, address, folder / "worker", env)
            _print("ok: a worker with a keytab judges every record")
            none = env | {
                "KRB5_CLIENT_KTNAME": str(folder / "none"),
                "KRB5CCNAME": f"FILE:{folder}/no-tickets",
            }
            check_mistake(address, folder / "no-keytab", none, 6, "Kerberos gives no ticket")
            _print("ok: without a keytab the command names the variable")
            kdc.close()
            fresh = env | {"KRB5CCNAME": f"FILE:{folder}/fresh"}
            check_mistake(address, folder / "no-kdc", fresh, 7, "Kerberos does not answer")
            _print("ok: without a KDC the command can be retried")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
