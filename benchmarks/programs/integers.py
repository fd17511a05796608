"""Complex and integer arithmetic, bits and hashing."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program

U = np.uint32


@program(lambda d: (d.below(2**32, 1_000_000, dtype=U),))
def murmur_finaliser(x):
    """Three rounds of a mixing function of 32 bits, and a histogram of the low byte."""
    for _ in range(3):
        x = x ^ (x >> U(16))
        x = x * U(0x85EBCA6B)
        x = x ^ (x >> U(13))
        x = x * U(0xC2B2AE35)
        x = x ^ (x >> U(16))
    return x, np.bincount((x & U(255)).astype(np.int64), minlength=256)


@murmur_finaliser.in_jax
def _(jnp, lax, x):
    for _ in range(3):
        x = x ^ (x >> U(16))
        x = x * U(0x85EBCA6B)
        x = x ^ (x >> U(13))
        x = x * U(0xC2B2AE35)
        x = x ^ (x >> U(16))
    return x, jnp.bincount((x & U(255)).astype(jnp.int64), length=256)


@program(lambda d: (d.below(2**63 - 1, 500_000, dtype=np.uint64),))
def population_count(x):
    """Bits set in words of 64, by parallel sums."""
    m1, m2, m4 = (
        np.uint64(0x5555555555555555),
        np.uint64(0x3333333333333333),
        np.uint64(0x0F0F0F0F0F0F0F0F),
    )
    x = x - ((x >> np.uint64(1)) & m1)
    x = (x & m2) + ((x >> np.uint64(2)) & m2)
    x = (x + (x >> np.uint64(4))) & m4
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)


@program(lambda d: (d.below(2**32, 4, 100_000, dtype=U),))
def xorshift_streams(state):
    """Twenty numbers of many generators, as fractions."""
    x, y, z, w = state[0], state[1], state[2], state[3]
    out = []
    for _ in range(20):
        t = x ^ (x << U(11))
        x, y, z = y, z, w
        w = w ^ (w >> U(19)) ^ t ^ (t >> U(8))
        out.append((w >> U(8)).astype(np.float64) * 2.0**-24)
    return np.stack(out), w


@program(lambda d: (d.uniform(400, 600), d.uniform(400, 600)))
def julia_set(re, im):
    """Thirty rounds of z*z + c in complex numbers, with a smooth count."""
    z = (3 * re - 1.5) + 1j * (2 * im - 1)
    c = -0.8 + 0.156j
    count = np.zeros(z.shape)
    for _ in range(30):
        inside = np.abs(z) < 2
        z = np.where(inside, z * z + c, z)
        count = count + inside
    return count + 1 - np.log2(np.log(np.abs(z) + 1.1) + 1)


@julia_set.in_jax
def _(jnp, lax, re, im):
    c = -0.8 + 0.156j

    def step(_, state):
        z, count = state
        inside = jnp.abs(z) < 2
        return jnp.where(inside, z * z + c, z), count + inside

    first = (3 * re - 1.5) + 1j * (2 * im - 1), jnp.zeros(re.shape)
    z, count = lax.fori_loop(0, 30, step, first)
    return count + 1 - jnp.log2(jnp.log(jnp.abs(z) + 1.1) + 1)


@program(lambda d: (d.normal(300, 300), d.normal(300, 300)), tolerance=1e-8)
def complex_products(a, b):
    """A matrix of complex numbers times its adjoint, phases, and a unitary's defect."""
    z = a + 1j * b
    h = z @ z.conj().T
    phase = z / np.abs(z)
    return h.real, h.imag, np.angle(z), np.abs(phase.mean())


def checksum_table():
    table = np.arange(256, dtype=U)
    for _ in range(8):
        table = np.where(table & U(1), (table >> U(1)) ^ U(0xEDB88320), table >> U(1))
    return table


def bits_set():
    return np.array([(i).bit_count() for i in range(256)])


@program(lambda d: (d.below(256, 400_000, dtype=np.uint8), checksum_table()))
def cyclic_checksum(data, table):
    """The checksum of 32 bits of each block of eight bytes, by a table."""
    n = len(data) // 8 * 8
    blocks = data[:n].reshape(-1, 8)
    crc = np.full(len(blocks), 0xFFFFFFFF, dtype=U)
    for k in range(8):
        crc = table[(crc ^ blocks[:, k]) & U(255)] ^ (crc >> U(8))
    return crc ^ U(0xFFFFFFFF)


@program(lambda d: (d.below(1_000_000, 300_000) + 1, d.below(1_000_000, 300_000) + 1))
def greatest_divisors(a, b):
    """Greatest common divisors by thirty guarded steps of Euclid's algorithm."""
    first, second = a, b
    for _ in range(30):
        safe = np.where(b == 0, 1, b)
        a, b = np.where(b == 0, a, b), np.where(b == 0, 0, a % safe)
    return a, first // a * second


@greatest_divisors.in_jax
def _(jnp, lax, a, b):
    def step(_, pair):
        a, b = pair
        safe = jnp.where(b == 0, 1, b)
        return jnp.where(b == 0, a, b), jnp.where(b == 0, 0, a % safe)

    g, _ = lax.fori_loop(0, 30, step, (a, b))
    return g, a // g * b


@program(lambda d: (d.below(1000, 200_000), d.below(40, 200_000)))
def modular_powers(base, exponent):
    """Powers modulo a prime, bit by bit."""
    prime = 1_000_003
    result = np.ones_like(base)
    for _ in range(6):
        result = np.where(exponent & 1, result * base % prime, result)
        base = base * base % prime
        exponent = exponent >> 1
    return result


@program(lambda d: (d.below(1024, 400_000, dtype=U), d.below(1024, 400_000, dtype=U)))
def morton_codes(x, y):
    """Two coordinates interleaved bit by bit, taken apart again, and the order along the curve."""

    def spread(v):
        v = (v | (v << U(8))) & U(0x00FF00FF)
        v = (v | (v << U(4))) & U(0x0F0F0F0F)
        v = (v | (v << U(2))) & U(0x33333333)
        return (v | (v << U(1))) & U(0x55555555)

    code = spread(x) | (spread(y) << U(1))
    back = code & U(0x55555555)
    back = (back | (back >> U(1))) & U(0x33333333)
    back = (back | (back >> U(2))) & U(0x0F0F0F0F)
    back = (back | (back >> U(4))) & U(0x00FF00FF)
    return code, (back | (back >> U(8))) & U(0x0000FFFF)


@program(lambda d: (d.normal(200_000, dtype=np.float32),))
def bits_of_floats(x):
    """Exponents and mantissas of float32 numbers by their bits, and a cheap square root of them."""
    bits = x.view(np.int32)
    exponent = ((bits >> 23) & 255) - 127
    mantissa = (bits & 0x7FFFFF).astype(np.float32) / 8388608.0 + 1
    guess = ((np.abs(x).view(np.int32) >> 1) + 0x1FBD1DF5).view(np.float32)
    better = 0.5 * (guess + np.abs(x) / guess)
    return exponent, mantissa, better


@program(lambda d: (d.below(100, 800, 800), d.below(100, 800, 800)))
def integer_matrices(a, b):
    """Sums and remainders of integer images, floor divisions of both signs, and parities."""
    d = a - b
    q, r = np.divmod(d * 7 + 3, 5)
    return q, r, (np.bitwise_xor.reduce(a, axis=1) & 1), (a & b).sum(axis=0), np.sign(d) * (d // 3)


@program(lambda d: (d.below(2, 3000, 256).astype(bool), d.below(2, 256).astype(bool), bits_set()))
def hamming_search(codes, query, table):
    """Hamming and Jaccard distances of packed codes, and the nearest one."""
    packed, wanted = np.packbits(codes, axis=1), np.packbits(query)
    distance = table[packed ^ wanted].sum(1)
    union = table[packed | wanted].sum(1)
    return distance, distance / np.maximum(union, 1), distance.argmin()
