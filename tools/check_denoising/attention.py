"""Attention in parts, and what is chosen from a prefix."""

import numpy as np


def part(query, key, value, allowed=None, scale=None):
    """Attention to some tokens alone: query [t, heads, d], key and value [n, KV heads, d], allowed [heads, t, n].
    -> output [t, heads, d], natural log sum [t, heads]"""
    t, heads, d = query.shape
    if not len(key):
        return np.zeros_like(query), np.full((t, heads), -np.inf)
    group = heads // key.shape[1]
    scores = products(query, key) / (np.sqrt(d) if scale is None else scale)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    peak = np.max(scores, -1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(peak), peak, 0.0))
    total = weights.sum(-1)
    spread = np.repeat(value, group, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        output = np.einsum("htn,nhd->thd", weights, spread) / total.T[..., None]
        logsum = (np.log(total) + peak[..., 0]).T
    return np.where(total.T[..., None] > 0, output, 0.0), logsum


def products(query, key):
    """-> [heads, t, n]"""
    return np.einsum("thd,nhd->htn", query, np.repeat(key, query.shape[1] // key.shape[1], axis=1))


def merge(one, other):
    """Two parts as one softmax over both."""
    (a, la), (b, lb) = one, other
    peak = np.maximum(la, lb)
    wa, wb = np.exp(la - peak)[..., None], np.exp(lb - peak)[..., None]
    return (wa * a + wb * b) / (wa + wb)


def attend(query, key, value, allowed=None):
    return part(query, key, value, allowed)[0]


def softmax(x):
    e = np.exp(x - np.max(x, -1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
