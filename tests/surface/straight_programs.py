"""Factorisations, solves, recurrences and stencils as plain Python loops over slices, as people write
them for NumPy (PolyBench, NPBench, textbooks): each a function, and arguments for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

rng = np.random.default_rng(0)


def positive_definite(n):
    a = rng.standard_normal((n, n))
    return a @ a.T + n * np.eye(n)


def dominant(n):
    return rng.standard_normal((n, n)) + n * np.eye(n)


N = 9
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {}


def program(*args):
    def put(f):
        PROGRAMS[f.__name__] = (f, args)
        return f

    return put


@program(dominant(N))
def lu(A):
    n = A.shape[0]
    for k in range(n - 1):
        A[k + 1 :, k] /= A[k, k]
        A[k + 1 :, k + 1 :] -= np.outer(A[k + 1 :, k], A[k, k + 1 :])
    return A


@program(dominant(N))
def lu_polybench(A):
    n = A.shape[0]
    for i in range(n):
        for j in range(i):
            A[i, j] -= A[i, :j] @ A[:j, j]
            A[i, j] /= A[j, j]
        for j in range(i, n):
            A[i, j] -= A[i, :i] @ A[:i, j]
    return A


@program(positive_definite(N))
def cholesky(A):
    n = A.shape[0]
    A[0, 0] = np.sqrt(A[0, 0])
    for i in range(1, n):
        for j in range(i):
            A[i, j] -= np.dot(A[i, :j], A[j, :j])
            A[i, j] /= A[j, j]
        A[i, i] -= np.dot(A[i, :i], A[i, :i])
        A[i, i] = np.sqrt(A[i, i])
    return A


@program(positive_definite(N))
def cholesky2(A):
    n = A.shape[0]
    L = np.zeros_like(A)
    for j in range(n):
        L[j, j] = np.sqrt(A[j, j] - np.dot(L[j, :j], L[j, :j]))
        L[j + 1 :, j] = (A[j + 1 :, j] - L[j + 1 :, :j] @ L[j, :j]) / L[j, j]
    return L


@program(rng.standard_normal((N, N)))
def householder_qr(A):
    m, n = A.shape
    Q = np.eye(m)
    upper = A.copy()
    for k in range(n - 1):
        x = upper[k:, k]
        alpha = -np.sign(x[0]) * np.sqrt(x @ x)
        v = x.copy()
        v[0] -= alpha
        v = v / np.sqrt(v @ v)
        upper[k:, k:] -= 2.0 * np.outer(v, v @ upper[k:, k:])
        Q[:, k:] -= 2.0 * np.outer(Q[:, k:] @ v, v)
    return Q, upper


@program(rng.standard_normal((12, N)))
def gramschmidt(A):
    _m, n = A.shape
    Q = np.zeros_like(A)
    upper = np.zeros((n, n))
    for k in range(n):
        upper[k, k] = np.sqrt(np.dot(A[:, k], A[:, k]))
        Q[:, k] = A[:, k] / upper[k, k]
        for j in range(k + 1, n):
            upper[k, j] = np.dot(Q[:, k], A[:, j])
            A[:, j] -= Q[:, k] * upper[k, j]
    return Q, upper


@program(rng.standard_normal((12, N)))
def modified_gram_schmidt(A):
    _m, n = A.shape
    Q = A.copy()
    upper = np.zeros((n, n))
    for k in range(n):
        upper[k, k] = np.linalg.norm(Q[:, k])
        Q[:, k] /= upper[k, k]
        upper[k, k + 1 :] = Q[:, k] @ Q[:, k + 1 :]
        Q[:, k + 1 :] -= np.outer(Q[:, k], upper[k, k + 1 :])
    return Q, upper


@program(1.5, rng.standard_normal((N, N)), rng.standard_normal((N, 7)))
def trmm(alpha, A, B):
    for i in range(B.shape[0]):
        for j in range(B.shape[1]):
            B[i, j] += np.dot(A[i + 1 :, i], B[i + 1 :, j])
    B *= alpha
    return B


@program(1.5, 0.5, rng.standard_normal((N, N)), rng.standard_normal((N, 5)))
def syrk(alpha, beta, C, A):
    for i in range(A.shape[0]):
        C[i, : i + 1] *= beta
        for k in range(A.shape[1]):
            C[i, : i + 1] += alpha * A[i, k] * A[: i + 1, k]
    return C


@program(
    1.5, 0.5, rng.standard_normal((N, N)), rng.standard_normal((N, N)), rng.standard_normal((N, N))
)
def symm(alpha, beta, C, A, B):
    temp2 = np.empty((C.shape[1],), dtype=C.dtype)
    C *= beta
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            C[:i, j] += alpha * B[i, j] * A[i, :i]
            temp2[j] = B[:i, j] @ A[i, :i]
        C[i, :] += alpha * B[i, :] * A[i, i] + alpha * temp2
    return C


@program(np.tril(dominant(N)), rng.standard_normal(N))
def trisolv(L, b):
    x = np.zeros_like(b)
    for i in range(x.shape[0]):
        x[i] = (b[i] - L[i, :i] @ x[:i]) / L[i, i]
    return x


@program(np.triu(dominant(N)), rng.standard_normal((N, 8)))
def back_substitution(U, B):
    n = U.shape[0]
    X = B.copy()
    for i in range(n - 1, -1, -1):
        X[i] /= U[i, i]
        X[:i] -= np.outer(U[:i, i], X[i])
    return X


@program(rng.random((N, N)))
def seidel_2d(A):
    n = A.shape[0]
    for _t in range(3):
        for i in range(1, n - 1):
            A[i, 1:-1] += (
                A[i - 1, :-2]
                + A[i - 1, 1:-1]
                + A[i - 1, 2:]
                + A[i, 2:]
                + A[i + 1, :-2]
                + A[i + 1, 1:-1]
                + A[i + 1, 2:]
            )
            for j in range(1, n - 1):
                A[i, j] += A[i, j - 1]
                A[i, j] /= 9.0
    return A


@program(
    rng.random((5, 4, N)),
    rng.random((6, 4, N)),
    rng.random((5, 4, N)),
    rng.random((5, 4, N)),
    rng.random((5, 4, N)),
    0.15,
)
def vadv(utens_stage, wcon, u_stage, u_pos, utens, dtr_stage):
    BET_M = BET_P = 0.5
    rows, columns, K = utens_stage.shape
    ccol = np.zeros((rows, columns, K))
    dcol = np.zeros((rows, columns, K))
    data_col = np.zeros((rows, columns))
    for k in range(1):
        gcv = 0.25 * (wcon[1:, :, k + 1] + wcon[:-1, :, k + 1])
        cs = gcv * BET_M
        ccol[:, :, k] = gcv * BET_P
        bcol = dtr_stage - ccol[:, :, k]
        correction_term = -cs * (u_stage[:, :, k + 1] - u_stage[:, :, k])
        dcol[:, :, k] = (
            dtr_stage * u_pos[:, :, k] + utens[:, :, k] + utens_stage[:, :, k] + correction_term
        )
        divided = 1.0 / bcol
        ccol[:, :, k] = ccol[:, :, k] * divided
        dcol[:, :, k] = dcol[:, :, k] * divided
    for k in range(1, K - 1):
        gav = -0.25 * (wcon[1:, :, k] + wcon[:-1, :, k])
        gcv = 0.25 * (wcon[1:, :, k + 1] + wcon[:-1, :, k + 1])
        as_ = gav * BET_M
        cs = gcv * BET_M
        acol = gav * BET_P
        ccol[:, :, k] = gcv * BET_P
        bcol = dtr_stage - acol - ccol[:, :, k]
        correction_term = -as_ * (u_stage[:, :, k - 1] - u_stage[:, :, k]) - cs * (
            u_stage[:, :, k + 1] - u_stage[:, :, k]
        )
        dcol[:, :, k] = (
            dtr_stage * u_pos[:, :, k] + utens[:, :, k] + utens_stage[:, :, k] + correction_term
        )
        divided = 1.0 / (bcol - ccol[:, :, k - 1] * acol)
        ccol[:, :, k] = ccol[:, :, k] * divided
        dcol[:, :, k] = (dcol[:, :, k] - (dcol[:, :, k - 1]) * acol) * divided
    for k in range(K - 1, K):
        gav = -0.25 * (wcon[1:, :, k] + wcon[:-1, :, k])
        as_ = gav * BET_M
        acol = gav * BET_P
        bcol = dtr_stage - acol
        correction_term = -as_ * (u_stage[:, :, k - 1] - u_stage[:, :, k])
        dcol[:, :, k] = (
            dtr_stage * u_pos[:, :, k] + utens[:, :, k] + utens_stage[:, :, k] + correction_term
        )
        divided = 1.0 / (bcol - ccol[:, :, k - 1] * acol)
        dcol[:, :, k] = (dcol[:, :, k] - (dcol[:, :, k - 1]) * acol) * divided
    for k in range(K - 1, K - 2, -1):
        datacol = dcol[:, :, k]
        data_col[:] = datacol
        utens_stage[:, :, k] = dtr_stage * (datacol - u_pos[:, :, k])
    for k in range(K - 2, -1, -1):
        datacol = dcol[:, :, k] - ccol[:, :, k] * data_col[:, :]
        data_col[:] = datacol
        utens_stage[:, :, k] = dtr_stage * (datacol - u_pos[:, :, k])
    return utens_stage


@program(rng.random((N, N)))
def adi(u):
    n, steps = u.shape[0], 2
    DX = 1.0 / n
    DY = 1.0 / n
    DT = 1.0 / steps
    mul1 = 2.0 * DT / (DX * DX)
    mul2 = 1.0 * DT / (DY * DY)
    a = -mul1 / 2.0
    b = 1.0 + mul2
    c = a
    d = -mul2 / 2.0
    e = 1.0 + mul2
    f = d
    v = np.empty_like(u)
    p = np.empty_like(u)
    q = np.empty_like(u)
    for _t in range(1, steps + 1):
        v[0, 1 : n - 1] = 1.0
        p[1 : n - 1, 0] = 0.0
        q[1 : n - 1, 0] = v[0, 1 : n - 1]
        for j in range(1, n - 1):
            p[1 : n - 1, j] = -c / (a * p[1 : n - 1, j - 1] + b)
            q[1 : n - 1, j] = (
                -d * u[j, 0 : n - 2]
                + (1.0 + 2.0 * d) * u[j, 1 : n - 1]
                - f * u[j, 2:n]
                - a * q[1 : n - 1, j - 1]
            ) / (a * p[1 : n - 1, j - 1] + b)
        v[n - 1, 1 : n - 1] = 1.0
        for j in range(n - 2, 0, -1):
            v[j, 1 : n - 1] = p[1 : n - 1, j] * v[j + 1, 1 : n - 1] + q[1 : n - 1, j]
        u[1 : n - 1, 0] = 1.0
        p[1 : n - 1, 0] = 0.0
        q[1 : n - 1, 0] = u[1 : n - 1, 0]
        for j in range(1, n - 1):
            p[1 : n - 1, j] = -f / (d * p[1 : n - 1, j - 1] + e)
            q[1 : n - 1, j] = (
                -a * v[0 : n - 2, j]
                + (1.0 + 2.0 * a) * v[1 : n - 1, j]
                - c * v[2:n, j]
                - d * q[1 : n - 1, j - 1]
            ) / (d * p[1 : n - 1, j - 1] + e)
        u[1 : n - 1, n - 1] = 1.0
        for j in range(n - 2, 0, -1):
            u[1 : n - 1, j] = p[1 : n - 1, j] * u[1 : n - 1, j + 1] + q[1 : n - 1, j]
    return u


@program(rng.random(N))
def durbin(r):
    y = np.empty_like(r)
    alpha = -r[0]
    beta = 1.0
    y[0] = -r[0]
    for k in range(1, r.shape[0]):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + np.dot(np.flip(r[:k]), y[:k])) / beta
        y[:k] += alpha * np.flip(y[:k])
        y[k] = alpha
    return y


@program(np.ascontiguousarray(rng.integers(0, 4, N)))
def nussinov(seq):
    n = seq.shape[0]
    table = np.zeros((n, n), np.int64)
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            table[i, j] = np.maximum(table[i, j], table[i, j - 1])
            table[i, j] = np.maximum(table[i, j], table[i + 1, j]) if i + 1 < n else table[i, j]
            if i < j - 1:
                table[i, j] = np.maximum(table[i, j], table[i + 1, j - 1] + (seq[i] + seq[j] == 3))
            else:
                table[i, j] = np.maximum(table[i, j], table[i + 1, j - 1])
            for k in range(i + 1, j, 3):
                table[i, j] = np.maximum(table[i, j], table[i, k] + table[k + 1, j])
    return table


@program(rng.random((N, N)) * 10)
def floyd_warshall(path):
    for k in range(path.shape[0]):
        path[:] = np.minimum(path[:], np.add.outer(path[:, k], path[k, :]))
    return path


@program(dominant(N), rng.standard_normal(N))
def ludcmp(A, b):
    n = A.shape[0]
    x = np.zeros_like(b)
    y = np.zeros_like(b)
    for k in range(n):
        A[k + 1 :, k] /= A[k, k]
        A[k + 1 :, k + 1 :] -= A[k + 1 :, k : k + 1] * A[k : k + 1, k + 1 :]
    for i in range(n):
        y[i] = b[i] - A[i, :i] @ y[:i]
    for i in range(n - 1, -1, -1):
        x[i] = (y[i] - A[i, i + 1 :] @ x[i + 1 :]) / A[i, i]
    return x


@program(rng.standard_normal((12, N)))
def correlation(data):
    M = data.shape[1]
    mean = data.mean(0)
    std = data.std(0)
    d = (data - mean) / (np.sqrt(len(data)) * std)
    corr = np.eye(M)
    for i in range(M - 1):
        corr[i + 1 : M, i] = corr[i, i + 1 : M] = d[:, i] @ d[:, i + 1 : M]
    return corr


@program(rng.standard_normal((N, N)), rng.standard_normal(N))
def gauss_jordan(A, b):
    A = A + N * np.eye(N)
    n = len(b)
    for k in range(n):
        p = A[k, k]
        A[k] /= p
        b[k] /= p
        for i in range(n):
            if i != k:
                b[i] -= A[i, k] * b[k]
                A[i] -= A[i, k] * A[k]
    return b


@program(rng.random(N) + 2, rng.random(N) * 0.5, rng.random(N) * 0.5, rng.random(N))
def thomas(b, a, c, d):
    n = len(d)
    for i in range(1, n):
        w = a[i] / b[i - 1]
        b[i] -= w * c[i - 1]
        d[i] -= w * d[i - 1]
    x = np.zeros(n)
    x[-1] = d[-1] / b[-1]
    for i in range(n - 2, -1, -1):
        x[i] = (d[i] - c[i] * x[i + 1]) / b[i]
    return x


@program(rng.standard_normal((N, N)))
def hessenberg(A):
    n = A.shape[0]
    for k in range(n - 2):
        x = A[k + 1 :, k].copy()
        x[0] += np.where(x[0] >= 0, 1.0, -1.0) * np.linalg.norm(x)
        x /= np.linalg.norm(x)
        A[k + 1 :, k:] -= 2.0 * np.outer(x, x @ A[k + 1 :, k:])
        A[:, k + 1 :] -= 2.0 * np.outer(A[:, k + 1 :] @ x, x)
    return A


@program(rng.random((N, N)))
def deriche(img):
    W, H = img.shape
    y1 = np.empty_like(img)
    y2 = np.empty_like(img)
    a1, a2, a3, a4, b1, b2 = 0.2, 0.1, 0.15, -0.05, 0.9, -0.3
    y1[:, 0] = a1 * img[:, 0]
    y1[:, 1] = a1 * img[:, 1] + a2 * img[:, 0] + b1 * y1[:, 0]
    for j in range(2, H):
        y1[:, j] = a1 * img[:, j] + a2 * img[:, j - 1] + b1 * y1[:, j - 1] + b2 * y1[:, j - 2]
    y2[:, -1] = 0.0
    y2[:, -2] = a3 * img[:, -1]
    for j in range(H - 3, -1, -1):
        y2[:, j] = a3 * img[:, j + 1] + a4 * img[:, j + 2] + b1 * y2[:, j + 1] + b2 * y2[:, j + 2]
    out = y1 + y2
    y1[0, :] = a1 * out[0, :]
    y1[1, :] = a1 * out[1, :] + a2 * out[0, :] + b1 * y1[0, :]
    for i in range(2, W):
        y1[i, :] = a1 * out[i, :] + a2 * out[i - 1, :] + b1 * y1[i - 1, :] + b2 * y1[i - 2, :]
    y2[-1, :] = 0.0
    y2[-2, :] = a3 * out[-1, :]
    for i in range(W - 3, -1, -1):
        y2[i, :] = a3 * out[i + 1, :] + a4 * out[i + 2, :] + b1 * y2[i + 1, :] + b2 * y2[i + 2, :]
    return y1 + y2


@program(rng.random(20), rng.random(20))
def fdtd_1d(ez, hy):
    for t in range(N):
        hy[:-1] += 0.5 * (ez[1:] - ez[:-1])
        ez[1:] += 0.5 * (hy[1:] - hy[:-1])
        ez[10] += np.exp(-((t - 30.0) ** 2) / 100.0)
    return ez


@program(rng.random((N, N)), rng.random((N, N)), rng.random((N, N)))
def fdtd_2d(ex, ey, hz):
    for t in range(5):
        ey[0, :] = t * 0.1
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return ex, ey, hz


@program(rng.random((6, 6, 6)), rng.random((6, 6, 6)))
def heat_3d(A, B):
    for _t in range(1, 4):
        B[1:-1, 1:-1, 1:-1] = (
            0.125 * (A[2:, 1:-1, 1:-1] - 2.0 * A[1:-1, 1:-1, 1:-1] + A[:-2, 1:-1, 1:-1])
            + 0.125 * (A[1:-1, 2:, 1:-1] - 2.0 * A[1:-1, 1:-1, 1:-1] + A[1:-1, :-2, 1:-1])
            + 0.125 * (A[1:-1, 1:-1, 2:] - 2.0 * A[1:-1, 1:-1, 1:-1] + A[1:-1, 1:-1, 0:-2])
            + A[1:-1, 1:-1, 1:-1]
        )
        A[1:-1, 1:-1, 1:-1] = (
            0.125 * (B[2:, 1:-1, 1:-1] - 2.0 * B[1:-1, 1:-1, 1:-1] + B[:-2, 1:-1, 1:-1])
            + 0.125 * (B[1:-1, 2:, 1:-1] - 2.0 * B[1:-1, 1:-1, 1:-1] + B[1:-1, :-2, 1:-1])
            + 0.125 * (B[1:-1, 1:-1, 2:] - 2.0 * B[1:-1, 1:-1, 1:-1] + B[1:-1, 1:-1, 0:-2])
            + B[1:-1, 1:-1, 1:-1]
        )
    return A


@program(rng.random((N, N)))
def jacobi_redblack(u):
    for _s in range(5):
        u[1:-1:2, 1:-1:2] = 0.25 * (
            u[:-2:2, 1:-1:2] + u[2::2, 1:-1:2] + u[1:-1:2, :-2:2] + u[1:-1:2, 2::2]
        )
        u[2:-1:2, 2:-1:2] = 0.25 * (
            u[1:-2:2, 2:-1:2] + u[3::2, 2:-1:2] + u[2:-1:2, 1:-2:2] + u[2:-1:2, 3::2]
        )
    return u


@program(rng.random((N, 7)))
def cavity_rows(p):
    for _it in range(5):
        pn = p.copy()
        p[1:-1, 1:-1] = 0.25 * (pn[1:-1, 2:] + pn[1:-1, :-2] + pn[2:, 1:-1] + pn[:-2, 1:-1])
        p[:, -1] = p[:, -2]
        p[0, :] = p[1, :]
        p[:, 0] = p[:, 1]
        p[-1, :] = 0
    return p


@program(rng.random((N, N)), rng.random((N, 3)))
def blocked_solve(A, B):
    A = A + N * np.eye(N)
    X = np.zeros_like(B)
    for i in range(0, len(B) - 3, 4):
        r = B[i : i + 4] - A[i : i + 4, :i] @ X[:i]
        for k in range(4):
            X[i + k] = (r[k] - A[i + k, i : i + k] @ X[i : i + k]) / A[i + k, i + k]
    return X
