"""Projects tapped target features to a drafter's context rows: one row per token.

This is all of a drafter that a verifier needs. A row depends on its own token only, so rows may be
computed in any order and on any machine. Families differ in how they make it:

    DSpark, DFlash   RMSNorm(W_fc F[p]) (eq. 2)
    Eagle3           W_fc F[p], no norm
    MTP              RMSNorm(F[p]) of a single tap
    language model   nothing: it reads token ids, its rows have width 0
"""

from __future__ import annotations

from torch import Tensor, nn

from dspark.model.config import DrafterConfig, Kind
from dspark.model.formats.deepseek_v4 import stored_name
from dspark.model.products import Product
from dspark.model.rotary import RMSNorm


class Projection(nn.Module):
    """Projects raw taps F [..., m*H], in ascending layer order, to rows [..., width]. Base class,
    and a language model's own."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.feature_size = config.feature_size  # m*H
        self.target_layer_ids = config.target_layer_ids
        # width of a row; 0 where only ids are sent
        self.width = config.hidden_size if config.target_layer_ids else 0
        self.fingerprint = ""  # set by the loader; names the tensors, not the file

    def project(self, features: Tensor) -> Tensor:
        """features [..., m*H] -> rows [..., width], in the dtype of the weights."""
        return features[..., : self.width]

    def serve_rows(self) -> None:
        """Prepares a fast `project` for features [T, m*H]; the weights must not change any more."""

    def wide(self, name: str) -> bool:
        """Whether a tensor stays fp32, whatever the dtype of the others."""
        return False

    def stored_names(self) -> dict[str, str]:
        """Name of every tensor -> its name in a checkpoint, the same one for released drafters."""
        stages = None if self.config.stage is None else self.config.num_hidden_layers
        return {
            name: name if stages is None else stored_name(name, stages)
            for name in self.state_dict()
        }


class FusedFeatures(Projection):
    """g[p] = W_fc F[p], Eagle3's projection: its layer applies the norm."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self._product: Product | None = None

    def serve_rows(self) -> None:
        self._product = Product([self.fc])
        if self._product.copied:  # the original is not read any more
            self.fc.weight = nn.Parameter(self.fc.weight.new_empty(0), requires_grad=False)

    def project(self, features: Tensor) -> Tensor:
        features = features.to(self.fc.weight.dtype)
        rows: Tensor = self.fc(features) if self._product is None else self._product(features)
        return rows


class ContextProjection(FusedFeatures):
    """C[p] = RMSNorm(W_fc F[p]) (eq. 2), of DSpark and DFlash. F: [..., m*H], C: [..., H]."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.hidden_norm = RMSNorm(
            config.hidden_size, config.rms_norm_eps, late_cast=config.late_cast
        )

    def project(self, features: Tensor) -> Tensor:
        context: Tensor = self.hidden_norm(super().project(features))
        return context


class LastHidden(Projection):
    """RMSNorm(F[p]), the projection of a multi-token-prediction module, which reads one tap."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps, late_cast=config.late_cast)

    def project(self, features: Tensor) -> Tensor:
        rows: Tensor = self.hnorm(features.to(self.hnorm.weight.dtype))
        return rows


_OF_KIND: dict[Kind, type[Projection]] = {
    "block": ContextProjection,
    "eagle3": FusedFeatures,
    "mtp": LastHidden,
    "lm": Projection,
}


def build_projection(config: DrafterConfig) -> Projection:
    """A projection of the config's family, with uninitialised weights."""
    return _OF_KIND[config.kind](config)
