"""NATS operators, accounts and users as `nsc` creates them: JWTs signed with nkeys."""

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]

UNLIMITED = -1


class Identity:
    def __init__(self, sort: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), sort)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self._pair.public_key.decode()

    @classmethod
    def user(cls) -> "Identity":
        return cls(nkeys.PREFIX_BYTE_USER)

    def sign(
        self, subject: "Identity", sort: str, claims: dict[str, Any], **more_claims: Any
    ) -> str:
        """Return a JWT with *claims* about *subject*, signed by this identity."""
        body = {
            "iat": int(time.time()),
            "iss": self.public,
            "name": sort,
            "sub": subject.public,
            "nats": {**claims, "type": sort, "version": 2},
            **more_claims,
        }
        digest = hashlib.sha256(json.dumps(body).encode()).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


class Operator:
    """An operator with one account, which issues users."""

    def __init__(self) -> None:
        self._operator = Identity(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = Identity(nkeys.PREFIX_BYTE_ACCOUNT)
        self._system = Identity(nkeys.PREFIX_BYTE_ACCOUNT)

    def config(self) -> str:
        operator = self._operator.sign(self._operator, "operator", {})
        limits = dict.fromkeys(
            ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), UNLIMITED
        ) | {"wildcards": True}
        storage = {"mem_storage": UNLIMITED, "disk_storage": UNLIMITED, "streams": UNLIMITED}
        system = self._operator.sign(self._system, "account", {"limits": limits})
        claims = {"limits": {**limits, **storage, "consumer": UNLIMITED}}
        account = self._operator.sign(self._account, "account", claims)
        return (
            f"operator: {operator}\nsystem_account: {self._system.public}\nresolver: MEMORY\n"
            "resolver_preload: {\n"
            f"  {self._account.public}: {account}\n  {self._system.public}: {system}\n}}"
        )

    def creds(self, file: Path, *, expires_in_s: int | None = None) -> str:
        """Write the credentials of a new user, and return the file's path."""
        user = Identity.user()
        claims = {"subs": UNLIMITED, "data": UNLIMITED, "payload": UNLIMITED, "pub": {}, "sub": {}}
        until = {} if expires_in_s is None else {"exp": int(time.time()) + expires_in_s}
        jwt = self._account.sign(user, "user", claims, **until)
        partial = file.with_suffix(".partial")
        partial.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n"
            "------END USER NKEY SEED------\n"
        )
        partial.replace(file)
        return str(file)


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
