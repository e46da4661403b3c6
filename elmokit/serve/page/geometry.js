// Similarities of vectors, and maps of them in two dimensions.

const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);

/** Return the cosine of two vectors; 0 if one is zero. */
export function cosine(a, b) {
  const norms = Math.sqrt(dot(a, a) * dot(b, b));
  return norms ? dot(a, b) / norms : 0;
}

/** Return the cosines of all pairs. */
export const cosines = (vectors) => vectors.map((a) => vectors.map((b) => cosine(a, b)));

/**
 * Place vectors on a plane, preserving distances as well as possible (classical scaling, which for vectors of length 1
 * gives their principal components).
 * @param {number[][]} similarities The cosines of all pairs.
 * @returns {number[][]} A point [x, y] per vector.
 */
export function plane(similarities) {
  const n = similarities.length;
  const means = similarities.map((row) => row.reduce((sum, value) => sum + value, 0) / n);
  const mean = means.reduce((sum, value) => sum + value, 0) / n;
  const centered = similarities.map((row, i) => row.map((value, j) => value - means[i] - means[j] + mean));
  const { values, vectors } = eigen(centered);
  const order = values.map((_, index) => index).sort((a, b) => values[b] - values[a]);
  return similarities.map((_, i) =>
    [0, 1].map((axis) => (axis < n ? vectors[i][order[axis]] * Math.sqrt(Math.max(0, values[order[axis]])) : 0)),
  );
}

/**
 * Rotate or mirror a map so that its points are as close as possible to those of another (orthogonal Procrustes).
 * @returns {number[][]} The rotated points.
 */
export function turnedTowards(points, target) {
  const sum = (a, b) => points.reduce((total, point, i) => total + point[a] * target[i][b], 0);
  const [xx, xy, yx, yy] = [sum(0, 0), sum(0, 1), sum(1, 0), sum(1, 1)];
  // In two dimensions, the best rotation and the best mirrored rotation have closed forms.
  const turn = Math.hypot(xx + yy, xy - yx);
  const mirror = Math.hypot(xx - yy, xy + yx);
  if (!turn && !mirror) return points;
  const [c, s] = turn >= mirror ? [(xx + yy) / turn, (xy - yx) / turn] : [(xx - yy) / mirror, (xy + yx) / mirror];
  return points.map(([x, y]) => (turn >= mirror ? [c * x - s * y, s * x + c * y] : [c * x + s * y, s * x - c * y]));
}

/** Interpolate between the maps of two layers. `layer` may be between two integers. */
export function between(maps, layer) {
  const below = Math.min(Math.floor(layer), maps.length - 1);
  const above = Math.min(below + 1, maps.length - 1);
  const share = layer - below;
  return maps[below].map((point, i) => point.map((value, axis) => value * (1 - share) + maps[above][i][axis] * share));
}

/**
 * Move the points of a drawing apart just enough that none hides another.
 * @param {number[][]} points In pixels.
 * @param {number} distance The minimum distance between two points.
 * @param {number[]} room Half of the width and height around [0, 0].
 */
export function spread(points, distance, room) {
  // Points in the same place have no direction in which to move apart, so they start like the seeds of a sunflower.
  const moved = [];
  points.forEach(([x, y], i) => {
    const before = points.slice(0, i).filter((other) => Math.hypot(other[0] - x, other[1] - y) < 1).length;
    const radius = 0.55 * distance * Math.sqrt(before);
    moved.push([x + radius * Math.cos(2.4 * before), y + radius * Math.sin(2.4 * before)]);
  });
  for (let round = 0; round < 120; round++) {
    for (let i = 0; i < moved.length; i++) {
      for (let j = 0; j < i; j++) {
        const apart = [moved[i][0] - moved[j][0], moved[i][1] - moved[j][1]];
        const length = Math.hypot(...apart) || 1e-6;
        const push = Math.max(0, distance - length) / 2 / length;
        for (const axis of [0, 1]) {
          moved[i][axis] += push * apart[axis];
          moved[j][axis] -= push * apart[axis];
        }
      }
    }
    for (const point of moved) for (const axis of [0, 1]) point[axis] = Math.max(-room[axis], Math.min(room[axis], point[axis]));
  }
  return moved;
}

/** Return the maps in pixels around the center of a drawing, with one scale for all layers and no overlapping points. */
export function placed(maps, [width, height], radius) {
  const room = [width / 2 - 2 * radius, height / 2 - 2 * radius];
  const reach = (axis) => Math.max(1e-6, ...maps.flat().map((point) => Math.abs(point[axis])));
  const scale = Math.min(room[0] / reach(0), room[1] / reach(1));
  return maps.map((points) => spread(points.map(([x, y]) => [scale * x, scale * y]), 2 * radius + 2, room));
}

/** Return the eigenvalues and eigenvectors (as columns) of a symmetric matrix, by Jacobi rotations. */
function eigen(matrix) {
  const n = matrix.length;
  const a = matrix.map((row) => [...row]);
  const vectors = a.map((_, i) => a.map((_, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 50; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) {
      for (let q = p + 1; q < n; q++) {
        off += a[p][q] ** 2;
        if (Math.abs(a[p][q]) < 1e-12) continue;
        const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1);
        const s = t * c;
        for (const rows of [a, vectors]) {
          for (const row of rows) [row[p], row[q]] = [c * row[p] - s * row[q], s * row[p] + c * row[q]];
        }
        for (let k = 0; k < n; k++) [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
      }
    }
    if (off < 1e-18) break;
  }
  return { values: a.map((row, i) => row[i]), vectors };
}
