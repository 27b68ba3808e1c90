"""From what a user calls a model to its place on disk: a path, a name of the catalogue, a model in
the cache of another program, or an id of the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

from draftproof import catalogue
from draftproof.discovery import hub
from draftproof.discovery.places import Place, all_places
from draftproof.errors import ModelNotFoundError


def resolve(
    name_or_path: str | os.PathLike[str] | None, progress: catalogue.Progress | None = None
) -> Path:
    """The .gguf file or the model folder; None is the default model.

    A path that exists is taken first, then the catalogue, then the caches of this machine. The
    network is touched only for the catalogue's default model and for a hub id that no cache has.
    Raises ModelNotFoundError, ModelFileError.
    """
    if name_or_path is None or isinstance(name_or_path, os.PathLike):
        return catalogue.resolve(name_or_path, progress)
    try:
        return catalogue.resolve(name_or_path, progress)
    except ModelNotFoundError:
        if name_or_path in catalogue.CATALOGUE or not name_or_path:
            raise
        place = find(name_or_path)
        if place is not None:
            return place.path
        hub_id = hub.parse_id(name_or_path)
        # A folder of that name makes it a mistyped path.
        if hub_id is None or Path(name_or_path).parent.is_dir():
            raise
    return hub.fetch(*hub_id, progress)


def find(name: str) -> Place | None:
    """A model of this machine's caches by its name, upper or lower case; a name without a type
    means the usual one where there are several."""
    places = {place.name.lower(): place for place in all_places()}
    wanted = name.lower()
    exact = [wanted, f"{wanted}:latest", f"{wanted}:{hub.DEFAULT_QUANT.lower()}"]
    for candidate in exact:
        if candidate in places:
            return places[candidate]
    return next((p for key, p in places.items() if key.startswith(f"{wanted}:")), None)


__all__ = ["Place", "all_places", "find", "resolve"]
