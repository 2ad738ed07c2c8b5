"""What pairs of neighbouring times say: the ratio's median, and how sure it is."""
import math
import statistics

FEWEST = 8  # pairs below which the interval of 99 % would need more than the extremes


def interval(values):
    """(low, high): the median's 99 % interval by order statistics, with the normal approximation of
    the binomial distribution; the extremes of fewer than FEWEST values."""
    ordered, count = sorted(values), len(values)
    low = max(math.floor((count - 2.576 * math.sqrt(count)) / 2), 0)
    return ordered[low], ordered[count - 1 - low]


def compare(ours, others):
    """Of times in pairs: the ratio others/ours, above 1 where ours are shorter, and a verdict where
    the interval leaves 1 out. 99 % and not 95: a table has some thirty lines."""
    ratios = [b / a for a, b in zip(ours, others, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    low, high = interval(ratios)
    verdict = "" if len(ratios) < FEWEST else "slower" if high < 1 else "faster" if low > 1 else ""
    return {"rounds": len(ratios), "ratio": statistics.median(ratios),
            "quartiles": [quartiles[0], quartiles[2]], "interval": [low, high],
            "verdict": verdict}
