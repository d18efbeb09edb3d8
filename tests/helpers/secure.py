"""A Kafka as `headrace broker --secure` makes it, with a way around it for the test itself."""

from pathlib import Path

from aiokafka.protocol.admin import DeleteAclsRequest

from app import rights
from app.broker.acls import Acl, numbered, set_acls
from app.broker.kafka import EmbeddedKafka
from app.broker.private import SUBJECT
from app.broker.secure import ADMIN, Secured
from app.kafka import admin
from app.settings import KafkaSettings, Settings

__all__ = ["SecureKafka"]

OPEN_INSIDE = {
    "listener.security.protocol.map": "CLIENTS:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:SSL",
    "super.users": f"User:CN={SUBJECT};User:{ADMIN};User:ANONYMOUS",
}


class SecureKafka(EmbeddedKafka):
    """Clients of the product meet TLS, passwords and ACLs; `internal` is open, so that plain helpers look at the topics."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        users = {kind: rights.acls(settings, kind) if settings else [] for kind in rights.KINDS}
        self.users = Secured(folder, "127.0.0.1", users)
        super().__init__(folder, secured=self.users, properties=OPEN_INSIDE)

    def environment(self, user: str) -> dict[str, str]:
        lines = self.users.env_file(user).read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def settings(self, user: str) -> KafkaSettings:
        return self.users.settings(user, self.bootstrap)

    async def take(self, user: str, *acls: Acl) -> None:
        async with admin(self.settings(ADMIN)) as client:
            for numbers in numbered(user, acls):
                answer = await client._send_request(DeleteAclsRequest(*numbers))
                assert [code for code, *_ in answer.filter_responses] == [0]

    async def give(self, user: str, *acls: Acl) -> None:
        async with admin(self.settings(ADMIN)) as client:
            await set_acls(client, user, acls)
