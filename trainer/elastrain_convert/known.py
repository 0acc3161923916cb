"""What is known of code outside of the script: calls whose effect ends with the loop body, and libraries that neither
write nor meet other processes. Everything else is named."""

from __future__ import annotations

import re

from elastrain_convert.script import matcher


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


BUILTINS = words(
    """
    abs all any bool bytes callable chr dict divmod enumerate filter float format frozenset getattr hasattr hash id
    int isinstance issubclass iter len list map max min object ord pow property range repr reversed round set
    slice sorted staticmethod str sum super tuple type zip ValueError RuntimeError TypeError KeyError
    NotImplementedError AssertionError Exception
    """
)
"""Without ``print``, ``open``, ``setattr``, ``exec`` and others that leave something behind."""

VALUES = words(
    """
    abs acos add addmm all allclose amax amin any arange argmax argmin argsort asin atan baddbmm bincount bmm bool
    byte cast cat ceil char chunk clamp clamp_max clamp_min clip clone concat conj contiguous copy cos count
    count_nonzero cpu cross cuda cummax cummin cumprod cumsum data_ptr decode det detach diag diagonal diff dim dist
    div dot double element_size einsum encode endswith eq equal erf exp expand expand_as expm1 eye flatten flip
    float floor fmod format full full_like gather ge get get_device gt half index index_add index_fill index_select
    int inverse is_contiguous is_cuda is_floating_point isfinite isinf isnan item items keys kthvalue le lerp
    linspace log log10 log1p log2 logical_and logical_not logical_or logical_xor logit logsumexp long lower lt
    lstrip masked_fill masked_select matmul max maximum mean median meshgrid min minimum mm movedim mul multiply mv
    narrow ndimension ne neg negative new_empty new_full new_ones new_tensor new_zeros nonzero norm numel numpy
    one_hot ones ones_like outer permute pin_memory pow prod quantile rad2deg reciprocal relu remainder repeat
    repeat_interleave replace reshape reshape_as roll rot90 round rsplit rsqrt rstrip scatter scatter_add select
    short sigmoid sign sin size softmax log_softmax sort split sqrt square squeeze stack startswith std storage
    strip stride sub subtract sum swapaxes swapdims t take take_along_dim tan tanh tensor_split tile title to tolist
    topk trace transpose tril triu true_divide type type_as unbind unflatten unfold unique unsqueeze upper values
    var view view_as where xlogy zeros zeros_like as_tensor tensor from_numpy to_dense
    """
)
"""Methods of tensors, texts and containers that change nothing."""

OF_MODULES = words(
    """
    train eval parameters named_parameters modules named_modules children named_children buffers named_buffers
    state_dict get_submodule get_parameter requires_grad_ zero_grad
    """
)
CHANGES = words(
    """
    append extend insert add update pop popleft appendleft clear remove discard setdefault sort
    """
)
"""Of containers; also of meters."""
OF_TRACKED = words("step zero_grad update unscale_ update_parameters step_update")
READS_TRACKED = words("scale get_scale get_last_lr get_lr state_dict param_groups")

RANDOM = matcher(
    r"(torch|torch\.random|numpy\.random|random|secrets)\.(?!Generator|Random\b|default_rng)"
    r"(.*\.)?(rand\w*|normal|uniform|bernoulli|multinomial|poisson|choice|choices|sample|shuffle|beta|gauss|permutation|"
    r"betavariate|token_\w+|gamma|dirichlet|binomial)"
)
RANDOM_METHODS = words(
    """
    normal_ uniform_ random_ bernoulli_ exponential_ cauchy_ geometric_ log_normal_ sample rsample
    """
)

_PURE = matcher(
    r"torch\.(?!distributed|save|load|manual_seed|seed|set_|use_|hub|multiprocessing|jit|profiler|onnx|optim|export|compile|"
    r"utils|random\.|cuda\.(manual|set_|seed)|backends|_foreach|package|nn\.init|nn\.parallel).*"
    r"|torch\.utils\.(checkpoint\.checkpoint|data\.default_collate|data\.dataloader\.default_collate)"
    r"|torch\.cuda\.set_device"
    r"|math\..*|cmath\..*|operator\..*|itertools\..*|functools\.(partial|reduce)|collections\..*|copy\.(copy|deepcopy)"
    r"|numpy\.(?!random|save|load|memmap|seterr).*|time\.(time|perf_counter|monotonic|time_ns|process_time)"
    r"|datetime\..*|contextlib\.(nullcontext|suppress)|warnings\.warn|typing\..*|einops\..*|dataclasses\..*"
    r"|torchvision\.(transforms|ops)\..*|torchvision\.utils\.make_grid|sklearn\.metrics\..*|os\.path\..*|json\.dumps"
)
IN_PLACE = re.compile(r".*[a-z0-9]_")
ALLOWED_IN_PLACE = words(
    """
    torch.nn.utils.clip_grad_norm_ torch.nn.utils.clip_grad_value_ torch.nn.utils.clip_grad.clip_grad_norm_
    torch.nn.utils.clip_grad.clip_grad_value_
    """
)


def is_pure(full: str) -> bool:
    """Whether a function of a library leaves nothing behind, and draws no random number."""
    return _PURE(full) and (full in ALLOWED_IN_PLACE or not IN_PLACE.fullmatch(full)) and not RANDOM(full)


LIBRARIES = words(
    """
    torch torchvision torchaudio numpy math cmath random argparse os sys time datetime pathlib json copy collections
    functools itertools operator typing dataclasses contextlib enum string re pprint abc types inspect textwrap
    statistics bisect heapq logging warnings tqdm PIL sklearn scipy pandas transformers datasets accelerate trl
    lightning pytorch_lightning einops __future__ gc builtins traceback hashlib uuid zlib gzip csv glob fractions
    timm tokenizers io tarfile
    """
)
"""Roots of packages that a script may import. What other packages do in several processes, and in a process that
joins later, is not known."""

WRITES = matcher(
    r"torch\.utils\.tensorboard\..*|torch\.profiler\..*|logging\.(FileHandler|handlers\..*)|csv\.(writer|DictWriter)"
    r"|json\.dump|pickle\.dump|numpy\.(save|savez|savez_compressed|savetxt)|torchvision\.utils\.save_image"
    r"|torchvision\.io\.write_.*|os\.(remove|unlink|rename|replace|rmdir|removedirs|system|mkdir|kill|fork|_exit|chdir)"
    r"|shutil\..*|subprocess\..*|tempfile\..*|transformers\.(?:.*\.)?(?:\w+Callback)"
)
"""Leaves something outside of the process."""
