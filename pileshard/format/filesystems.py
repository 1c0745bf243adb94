"""The fsspec file system of a URL: of this process, without kept listings, and named where it cannot be had."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pileshard.errors import MissingExtraError, OptionError, PileshardError
from pileshard.format.references import resolved
from pileshard.format.retry import describe
from pileshard.format.secrets import remember

#: Package and extra behind each protocol.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("abfs", "abfss", "az"), ("adlfs", "azure")),
    **dict.fromkeys(("http", "https"), ("aiohttp", "http")),
}


def options_by_name(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Storage options in a dict of their own.

    Raises:
      OptionError: they are no options by name. What was given is not shown, for it may be a secret.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise OptionError(
            "storage_options takes a dict of options by name, such as {'anon': True}; what was given is not shown, for "
            "it may be a secret"
        )
    return dict(options)


def open_filesystem(url: str, options: dict[str, Any] | None = None) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path there. It belongs to this process.

    What has no `://` is a path of this machine, whatever characters it holds (fsspec would take `::` for a chain).
    Listings are not kept where that can be chosen: fsspec answers from them what other clients have changed since.

    Raises:
      MissingExtraError: the package for this kind of storage is not installed.
      OptionError: there is no such kind of storage, or an option of it is wrong.
    """
    options = resolved(options or {})
    remember(options)
    if "://" not in url:
        return LocalFileSystem(), os.path.abspath(os.path.expanduser(url))
    protocol = url.split("://", 1)[0]
    package = _PACKAGES.get(protocol)
    fresh = {"use_listings_cache": False} if package else {}
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url, **{**fresh, **options}))
    except ImportError as error:
        if package:
            raise MissingExtraError(*package, f"{protocol}:// storage") from error
        raise OptionError(f"{url}: this storage needs a package that is not installed ({describe(error)})") from error
    except PileshardError:
        raise
    except Exception as error:  # clients refuse options by errors of all kinds
        raise OptionError(f"{url}: cannot be opened: {describe(error)}") from error
