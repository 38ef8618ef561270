"""Access keys: by which clients say who they are, to brokers with the setting `access_keys`.

A key is made by this client and kept by its owner. Brokers get its id, its principal and its SHA-256.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from comet.admin.parameters import Input
from comet.admin.rules import PRINCIPAL
from comet.types import Int64
from comet.units import count
from comet.v1 import admin_pb2 as admin
from comet.wire.bearer import ID, digest_of, id_of, make_access_key

DAYS_MAX: Final = 3650
_DAY_S: Final = 86_400

Holder = Annotated[
    str,
    Input(
        "The principal that its holder is, as rules name it.",
        pattern=f"^{PRINCIPAL}$",
        example="client:billing",
    ),
]
Days = Annotated[int, Input("Days until it expires; 0: it does not.", 0, DAYS_MAX)]
AccessKeyId = Annotated[str, Input("Id of the key.", pattern=f"^{ID.pattern}$", example="3f9a51c07d42")]
OfPrincipal = Annotated[str, Input("Only the keys of this one.", example="client:billing")]


@dataclass(frozen=True, slots=True)
class AccessKey:
    """What brokers know of an access key.

    >>> print(comet.AccessKey("3f9a51c07d42", "client:billing"))
    3f9a51c07d42 of client:billing
    """

    id: str
    principal: Annotated[str, "The principal that its holder is."]
    author: Annotated[str, "The client that created it; empty: it stands in a file."] = ""
    created_us: Annotated[Int64 | None, "None: it stands in a file."] = None
    expires_us: Annotated[Int64 | None, "None: never."] = None
    in_file: Annotated[bool, "In the brokers' file `access_keys`, so that it is removed there."] = False

    def __str__(self) -> str:
        return f"{self.id} of {self.principal}"


@dataclass(frozen=True, slots=True)
class NewAccessKey:
    """A key that was created. Brokers do not know its text: keep it in a file.

    >>> made = comet.NewAccessKey("comet_3f9a51c07d42_...", comet.AccessKey("3f9a51c07d42", "client:billing"))
    >>> made
    NewAccessKey(key=AccessKey(id='3f9a51c07d42', principal='client:billing', ...))
    """

    text: Annotated[str, "The key: its holder presents it."] = field(repr=False)
    key: AccessKey

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class AccessKeyList:
    """The access keys, and whether the broker that answers takes them.

    >>> print(comet.AccessKeyList((), accepted=True))
    0 access keys
    """

    keys: tuple[AccessKey, ...]
    accepted: Annotated[bool, "False: the broker has no setting `access_keys`, so that clients present none."]

    def __str__(self) -> str:
        keys = count(len(self.keys), "access key")
        return keys if self.accepted else f"{keys}; not taken: the broker has no setting access_keys"


@dataclass(frozen=True, slots=True)
class AccessKeyRevocation:
    """The end of a key; not `revoked`: no key had the id.

    >>> print(comet.AccessKeyRevocation("3f9a51c07d42", revoked=False, key=None))
    nothing to do: no access key has the id 3f9a51c07d42
    """

    id: str
    revoked: bool
    key: AccessKey | None

    def __str__(self) -> str:
        if not self.revoked:
            return f"nothing to do: no access key has the id {self.id}"
        return f"revoked: {self.key or self.id}"


def creation(principal: str, days: int) -> tuple[str, admin.CreateAccessKeyRequest]:
    """The text of a new key, and the request without it."""
    text = make_access_key()
    request = admin.CreateAccessKeyRequest(
        id=id_of(text), principal=principal, sha256=digest_of(text), lifetime_s=days * _DAY_S
    )
    return text, request


def key_from_pb(key: admin.AccessKey) -> AccessKey:
    return AccessKey(key.id, key.principal, key.author, key.created_us or None, key.expires_us or None, key.in_file)


def list_from_pb(answer: admin.ListAccessKeysResponse) -> AccessKeyList:
    return AccessKeyList(tuple(map(key_from_pb, answer.keys)), answer.accepted)


def revocation_from_pb(key_id: str, answer: admin.RevokeAccessKeyResponse) -> AccessKeyRevocation:
    key = key_from_pb(answer.key) if answer.HasField("key") else None
    return AccessKeyRevocation(key_id, answer.revoked, key)
