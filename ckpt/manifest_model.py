"""What pydantic checks of a manifest.json: apart, so that only its reader waits for pydantic."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

Size = Annotated[StrictInt, Field(ge=0)]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")
    size: Size
    sha256: Annotated[StrictStr, Field(pattern="^[0-9a-fA-F]{64}$")]


class Extension(BaseModel):
    """Our own object in it; another program writes none."""

    model_config = ConfigDict(frozen=True, extra="allow")
    v: StrictInt = 1
    generation: StrictStr | None = None
    parent: StrictStr | None = None
    chunk_bytes: Annotated[StrictInt, Field(ge=1)] | None = None
    chunks: dict[StrictStr, tuple[StrictStr, ...]] = Field(default_factory=dict)


class Model(BaseModel):
    """The whole of it; unknown keys are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")
    format_version: StrictInt
    created_at: StrictStr | None = None
    optimizer_step: StrictInt | None = None
    policy_version: StrictInt | None = None
    tensors: tuple[StrictStr, ...]
    files: dict[StrictStr, _File]
    ckpt: Extension | None = None

    @property
    def extension(self) -> Extension:
        """Our object, an empty one where there is none."""
        return self.ckpt or Extension()
