// Functions of arrays. Values that are null, undefined or NaN do not count, except in `sort`, where they come last.

const arrays = {
  valid: (values, of = (value) => value) => [...values].map((value) => of(value)).filter((value) => value != null && value >= value),

  min: (values, of) => arrays.valid(values, of).reduce((least, value) => (least <= value ? least : value), undefined),

  max: (values, of) => arrays.valid(values, of).reduce((most, value) => (most >= value ? most : value), undefined),

  extent: (values, of) => [arrays.min(values, of), arrays.max(values, of)],

  mean: (values) => {
    const numbers = arrays.valid(values);
    return numbers.length ? numbers.reduce((sum, value) => sum + value, 0) / numbers.length : undefined;
  },

  // Interpolates linearly between the two nearest values.
  quantile: (values, share, of) => {
    const sorted = arrays.valid(values, of).sort((a, b) => a - b);
    if (sorted.length === 0) return undefined;
    const place = (sorted.length - 1) * share;
    const below = Math.floor(place);
    return sorted[below] + ((sorted[below + 1] ?? sorted[below]) - sorted[below]) * (place - below);
  },

  sort: (values, of) => {
    const missing = (value) => value == null || !(value >= value);
    const keyed = [...values].map((value) => [of(value), value]);
    keyed.sort(([a], [b]) => missing(a) - missing(b) || (a < b ? -1 : a > b ? 1 : 0));
    return keyed.map(([, value]) => value);
  },

  // A map from each key to its values, in order.
  group: (values, of) => {
    const groups = new Map();
    for (const value of values) {
      const key = of(value);
      if (groups.has(key)) groups.get(key).push(value);
      else groups.set(key, [value]);
    }
    return groups;
  },

  range: (first, end) => Array.from({ length: Math.max(0, end - first) }, (_, n) => first + n),
};
