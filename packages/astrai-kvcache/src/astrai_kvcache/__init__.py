"""Paged KV cache with exact prefix sharing, for any model and any attention kernel."""

from astrai_kvcache.allocator import Allocator
from astrai_kvcache.errors import (
    BindError,
    DoubleFreeError,
    DuplicateTaskError,
    InvalidArgumentError,
    KVCacheError,
    PageStateError,
    PromptTooLongError,
    SharedPageError,
    UnknownTaskError,
)
from astrai_kvcache.events import CacheCounters, Capacity, PageEvent, PageEvicted, PageStored
from astrai_kvcache.host_tier import HostTier
from astrai_kvcache.kv_cache import KVCache
from astrai_kvcache.pool import PagePool
from astrai_kvcache.prefix_cache import PrefixCache, page_hash
from astrai_kvcache.req_to_token import ReqToTokenPool
from astrai_kvcache.storage import KVStorage
from astrai_kvcache.tiers import PageKV, PageTier, Prefix
from astrai_kvcache.workspace import BindBuffers, BindWorkspace

__all__ = [
    "Allocator",
    "BindBuffers",
    "BindError",
    "BindWorkspace",
    "CacheCounters",
    "Capacity",
    "DoubleFreeError",
    "DuplicateTaskError",
    "HostTier",
    "InvalidArgumentError",
    "KVCache",
    "KVCacheError",
    "KVStorage",
    "PageEvent",
    "PageEvicted",
    "PageKV",
    "PagePool",
    "PageStateError",
    "PageStored",
    "PageTier",
    "Prefix",
    "PrefixCache",
    "PromptTooLongError",
    "ReqToTokenPool",
    "SharedPageError",
    "UnknownTaskError",
    "page_hash",
]
