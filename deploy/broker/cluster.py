"""*Blocking.* A cluster for fault tests: three brokers and a controller, as Java processes.

Topics have three replicas, and a write needs two of them. Brokers in containers could not reach
each other at the addresses that they advertise, so the nodes always run from Kafka's jars.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.broker.address import LOOPBACK, choose_ports
from deploy.broker.broker import Broker
from deploy.broker.jars import obtain_jars
from deploy.broker.layout import controller_properties, member_properties
from deploy.broker.process import JavaServer, data_folder, find_java

NUMBERS = (1, 2, 3)
"""The numbers of the brokers, which are their node ids."""


class Cluster:
    """Three brokers, whose data and ports survive stop, kill and restart.

    Attributes:
        brokers: the brokers, by number.
        controller: the node that elects leaders; clients do not use it.
        bootstrap: the addresses of all brokers, separated by commas.
    """

    def __init__(self, brokers: dict[int, Broker], controller: Broker) -> None:
        self.brokers = brokers
        self.controller = controller
        self.bootstrap = ",".join(broker.bootstrap for broker in brokers.values())

    def start(self, *numbers: int) -> None:
        """Start brokers at once, all by default, and wait until they serve requests."""
        self._each(Broker.start, numbers)

    def kill(self, *numbers: int) -> None:
        """Kill brokers at once, all by default, as a power failure would."""
        self._each(Broker.kill, numbers)

    def restore(self) -> None:
        """Resume and start every node that does not run."""
        self._each(Broker.resume, ())
        self.controller.start()
        self.start()

    def _each(self, action: Callable[[Broker], None], numbers: tuple[int, ...]) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(action, [self.brokers[number] for number in numbers or NUMBERS]))


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Start a cluster and yield it; its data is deleted at the end.

    Raises:
        BrokerUnobtainable: this machine cannot run a broker.
        BrokerFailed: a node did not start.
    """
    java, jars = find_java(), obtain_jars()
    folder = Path(tempfile.mkdtemp(prefix="streamdedup-cluster-"))
    controller_port, *ports = choose_ports(1 + len(NUMBERS))

    def node(name: str, port: int, properties: dict[str, str]) -> Broker:
        (folder / name).mkdir()
        server = JavaServer(java, jars, folder / name, properties)
        resources.callback(server.discard)
        return Broker(f"{LOOPBACK}:{port}", server)

    def log_dir(name: str) -> str:
        return str(data_folder(folder / name))

    with contextlib.ExitStack() as resources:
        resources.callback(shutil.rmtree, folder, ignore_errors=True)
        controller = node(
            "controller",
            controller_port,
            controller_properties(controller_port, log_dir=log_dir("controller")),
        )
        brokers = {
            number: node(
                f"broker-{number}",
                port,
                member_properties(
                    number, port, controller_port, log_dir=log_dir(f"broker-{number}")
                ),
            )
            for number, port in zip(NUMBERS, ports, strict=True)
        }
        controller.start()
        cluster = Cluster(brokers, controller)
        cluster.start()
        yield cluster
