"""Users of etcd with rights on one prefix each. Every operation is idempotent."""

from __future__ import annotations

from typing import Any

from elastrain.etcd import EtcdClient, EtcdError
from elastrain.etcd.protocol import messages
from elastrain.etcd.wire import range_end

ROOT = "root"
"""The user and the role that may manage users; etcd prescribes the name."""


class EtcdUsers:
    """The calls of etcd's auth API that manage users and their rights.

    The client must log in as a user with the role ``root``, or without a user while authentication is off. Every call
    can raise ``EtcdUnavailable``, ``EtcdDenied`` or ``EtcdError``, and takes up to four times the client's timeout.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    def are_checked(self, root_password: str) -> bool:
        """Whether etcd requires authentication. Raises ``EtcdDenied`` if it does and the password is wrong."""
        request = messages.AuthenticateRequest(name=ROOT, password=root_password)
        return self._call("Authenticate", request, "log in as root", "authentication is not enabled") is not None

    def check(self, root_password: str) -> None:
        """Switch authentication on, with this password for ``root``. Existing users keep their rights."""
        self._add_role(ROOT)
        self._add_user(ROOT, root_password)
        self._grant(ROOT, ROOT)
        self._call("AuthEnable", messages.AuthEnableRequest(), "switch authentication on")

    def ensure(self, name: str, password: str, prefix: str) -> None:
        """Ensure a user with this password that may read and write the keys with ``prefix``.

        A role of the same name holds the rights.
        """
        self._add_role(name)
        permission = {"permType": "READWRITE", "key": prefix.encode(), "range_end": range_end(prefix)}
        grant = messages.AuthRoleGrantPermissionRequest(name=name, perm=permission)
        self._call("RoleGrantPermission", grant, f"give role {name!r} rights on {prefix}")
        self._add_user(name, password)
        self._grant(name, name)

    def suspend(self, name: str, prefix: str) -> None:
        """Take the user's rights on the keys with ``prefix``; :meth:`ensure` gives them again."""
        revoked = messages.AuthRoleRevokePermissionRequest(role=name, key=prefix.encode(), range_end=range_end(prefix))
        what = f"take rights on {prefix} from role {name!r}"
        self._call("RoleRevokePermission", revoked, what, "not")  # "… not granted to the role", "role name not found"

    def remove(self, name: str) -> None:
        """Remove user and role if they exist. The user's tokens end with it."""
        self._call(
            "UserDelete", messages.AuthUserDeleteRequest(name=name), f"remove user {name!r}", "user name not found"
        )
        self._call(
            "RoleDelete", messages.AuthRoleDeleteRequest(role=name), f"remove role {name!r}", "role name not found"
        )

    def names(self) -> list[str]:
        """All users."""
        return list(self._call("UserList", messages.AuthUserListRequest(), "list users").users)

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _add_role(self, name: str) -> None:
        self._call("RoleAdd", messages.AuthRoleAddRequest(name=name), f"add role {name!r}", "role name already exists")

    def _add_user(self, name: str, password: str) -> None:
        request = messages.AuthUserAddRequest(name=name, password=password)
        if self._call("UserAdd", request, f"add user {name!r}", "user name already exists") is None:
            # The user exists from an earlier attempt or with an old password. The change ends its tokens, and it logs
            # in again.
            changed = messages.AuthUserChangePasswordRequest(name=name, password=password)
            self._call("UserChangePassword", changed, f"set the password of user {name!r}")

    def _grant(self, user: str, role: str) -> None:
        request = messages.AuthUserGrantRoleRequest(user=user, role=role)
        self._call("UserGrantRole", request, f"give user {user!r} its role")

    def _call(self, method: str, request: Any, what: str, harmless: str = "") -> Any:
        """The answer; None if etcd refuses with the ``harmless`` message."""
        try:
            return self._client.wire.unary("auth", method, request, timeout=self._client.timeout, what=what)
        except EtcdError as error:
            if type(error) is EtcdError and harmless and harmless in error.detail:
                return None
            raise
