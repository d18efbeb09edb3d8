"""Certificates, users and rights of `headrace broker --secure`.

Clients come over TLS with a user and a password (SASL_SSL, PLAIN), and may do what an ACL allows, nothing else. The broker
and its controller talk to each other with a client certificate of the same authority, so no listener is open.
Everything lies in the folder `secure` of the broker's data, private keys and passwords with mode 0600:

    ca.pem                       what clients verify the broker with
    ca-key.pem, broker.pem       the authority's key; the broker's key and certificate
    admin.env, worker.env, ...   a user each, as the environment that headrace reads

Passwords are PLAIN's and stand in server.properties, which is 0600 as well: SCRAM would have them on a command line.
"""

import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.broker.acls import Acl, set_acls
from app.broker.private import BROKER, CA, SUBJECT, write_private
from app.errors import BrokerError
from app.kafka import admin
from app.settings import KafkaSettings

__all__ = ["ADMIN", "Secured"]

ADMIN = "admin"
"""May do anything (a super user)."""
PASSWORD_BYTES = 24
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Secured:
    """Keys and users of one broker, made once and kept.

    Args:
        folder: the broker's data folder.
        host: what clients are told to connect to.
        rights: user -> what it may do; `admin` is there anyway.
    """

    def __init__(self, folder: Path, host: str, rights: Mapping[str, Sequence[Acl]]) -> None:
        self.folder, self.host, self.rights = folder / "secure", host, rights
        self.passwords: dict[str, str] = {}

    @property
    def ca_file(self) -> Path:
        return self.folder / CA

    def env_file(self, user: str) -> Path:
        return self.folder / f"{user}.env"

    def prepare(self, bootstrap: str) -> dict[str, str]:
        """Makes what is missing; returns the server properties.

        Raises:
            BrokerError: `cryptography` isn't installed, or a file can't be read.
        """
        try:
            from app.broker.certificates import ensure_certificates
        except ImportError as error:
            raise BrokerError("`--secure` needs cryptography: pip install 'headrace[local]'") from error
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            ensure_certificates(self.folder, self.host)
            for user in (ADMIN, *self.rights):
                self.passwords[user] = self._password(user)
                write_private(self.env_file(user), self._environment(user, bootstrap))
        except (OSError, ValueError) as error:
            raise BrokerError(
                f"{self.folder} can't be used ({error}); remove it to have certificates and passwords made anew"
            ) from error
        return self._properties()

    def _password(self, user: str) -> str:
        try:
            lines = self.env_file(user).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return secrets.token_urlsafe(PASSWORD_BYTES)
        for line in lines:
            name, _, value = line.partition("=")
            if name == "HEADRACE_KAFKA__PASSWORD" and value:
                return value
        raise ValueError(f"{self.env_file(user).name} holds no password")

    def _environment(self, user: str, bootstrap: str) -> str:
        values = self.settings(user, bootstrap).model_dump(exclude_unset=True) | {"password": self.passwords[user]}
        return "".join(f"HEADRACE_KAFKA__{name.upper()}={shlex.quote(str(value))}\n" for name, value in values.items())

    def _properties(self) -> dict[str, str]:
        users = " ".join(f'user_{user}="{password}"' for user, password in self.passwords.items())
        return {
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / BROKER),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f"{PLAIN} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:CN={SUBJECT};User:{ADMIN}",
        }

    def settings(self, user: str, bootstrap: str) -> KafkaSettings:
        """How a client of this user connects."""
        return KafkaSettings(
            bootstrap_servers=bootstrap, security_protocol="SASL_SSL", sasl_mechanism="PLAIN", username=user,
            password=self.passwords[user], ssl_ca_file=self.ca_file,
        )  # fmt: skip

    async def grant(self, bootstrap: str) -> None:
        """Gives the users their rights, through the running broker; more that somebody gave them stay."""
        async with admin(self.settings(ADMIN, bootstrap)) as client:
            for user, acls in self.rights.items():
                await set_acls(client, user, acls)
