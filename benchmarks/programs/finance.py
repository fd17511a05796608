"""Monte Carlo methods and finance."""

from __future__ import annotations

import numpy as np

from benchmarks.programs.program import program


def normal_cdf(x):
    """Abramowitz and Stegun, 26.2.17."""
    t = 1 / (1 + 0.2316419 * np.abs(x))
    series = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi) * series
    return np.where(x > 0, 1 - tail, tail)


@program(lambda d: (d.uniform(500_000, low=50, high=150), d.uniform(500_000, low=0.1, high=2.0)))
def option_prices(spot, years):
    """Black and Scholes' prices of calls and puts with their deltas."""
    strike, rate, vol = 100.0, 0.03, 0.25
    root = vol * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + 0.5 * vol**2) * years) / root
    d2 = d1 - root
    discount = strike * np.exp(-rate * years)
    call = spot * normal_cdf(d1) - discount * normal_cdf(d2)
    return call, call - spot + discount, normal_cdf(d1)


@program(lambda d: (d.uniform(100_000, low=5, high=25), d.uniform(100_000, low=0.2, high=2.0)))
def implied_volatility(price, years):
    """Eight steps of Newton's method from one guess, for calls at the money."""
    spot, vol = 100.0, np.full_like(price, 0.3)
    for _ in range(8):
        root = vol * np.sqrt(years)
        d1 = 0.5 * root
        model = spot * (2 * normal_cdf(d1) - 1)
        vega = spot * np.sqrt(years) * np.exp(-0.5 * d1 * d1) / np.sqrt(2 * np.pi)
        vol = np.clip(vol - (model - price) / vega, 0.01, 4.0)
    return vol


@program(lambda d: (d.normal(252, 20_000),))
def asian_option(noise):
    """Paths of a year, their running mean, the payoff and its standard error."""
    dt = 1.0 / 252
    steps = (0.03 - 0.02) * dt + 0.2 * np.sqrt(dt) * noise
    paths = 100 * np.exp(np.cumsum(steps, axis=0))
    payoff = np.maximum(paths.mean(axis=0) - 100, 0) * np.exp(-0.03)
    return payoff.mean(), payoff.std() / np.sqrt(noise.shape[1])


@program(lambda d: (d.normal(100, 20_000), d.normal(100, 20_000)), tolerance=1e-8)
def stochastic_volatility(z1, z2):
    """Heston's model by Euler steps with full truncation."""
    s = np.zeros(z1.shape[1])
    v = np.full(z1.shape[1], 0.04)
    dt, kappa, theta, xi, rho = 0.01, 1.5, 0.04, 0.3, -0.7
    for a, b in zip(z1, z2, strict=False):
        positive = np.maximum(v, 0)
        root = np.sqrt(positive * dt)
        s = s - 0.5 * positive * dt + root * a
        v = v + kappa * (theta - positive) * dt + xi * root * (rho * a + np.sqrt(1 - rho**2) * b)
    return np.exp(s), v


@stochastic_volatility.in_jax
def _(jnp, lax, z1, z2):
    dt, kappa, theta, xi, rho = 0.01, 1.5, 0.04, 0.3, -0.7

    def step(state, z):
        (s, v), (a, b) = state, z
        positive = jnp.maximum(v, 0)
        root = jnp.sqrt(positive * dt)
        s = s - 0.5 * positive * dt + root * a
        v = v + kappa * (theta - positive) * dt + xi * root * (rho * a + jnp.sqrt(1 - rho**2) * b)
        return (s, v), None

    (s, v), _ = lax.scan(step, (jnp.zeros(z1.shape[1]), jnp.full(z1.shape[1], 0.04)), (z1, z2))
    return jnp.exp(s), v


@program(lambda d: (d.uniform(500, low=80.0, high=120.0),))
def binomial_tree(spot):
    """American puts of many underlyings by a tree of sixty steps."""
    n, dt, vol, rate = 60, 1.0 / 60, 0.3, 0.05
    up = np.exp(vol * np.sqrt(dt))
    p = (np.exp(rate * dt) - 1 / up) / (up - 1 / up)
    discount = np.exp(-rate * dt)
    j = np.arange(n + 1)
    value = np.maximum(100 - spot[:, None] * up ** (2.0 * j - n), 0)
    for i in range(n - 1, -1, -1):
        value = discount * (p * value[:, 1:] + (1 - p) * value[:, :-1])
        now = spot[:, None] * up ** (2.0 * j[: i + 1] - i)
        value = np.maximum(value, 100 - now)
    return value[:, 0]


@program(lambda d: (d.normal(1000, 250, dtype=np.float64), d.uniform(250)), tolerance=1e-8)
def portfolio_risk(returns, weights):
    """Volatility, value at risk, expected shortfall, and each asset's contribution."""
    w = weights / weights.sum()
    cov = np.cov(returns, rowvar=False)
    total = np.sqrt(w @ cov @ w)
    loss = np.sort(-(returns @ w))
    k = int(0.95 * len(loss))
    return total, loss[k], loss[k:].mean(), w * (cov @ w) / total


@program(
    lambda d: (d.uniform(3_000_000, dtype=np.float32), d.uniform(3_000_000, dtype=np.float32)),
    tolerance=1e-5,
)
def pi_by_darts(x, y):
    """The share of points in a circle, and its error."""
    inside = (x * x + y * y) <= 1.0
    share = inside.mean()
    return 4 * share, 4 * np.sqrt(share * (1 - share) / len(x))


@program(lambda d: (d.normal(2000, 500),))
def drawdowns(returns):
    """Wealth, running peaks, and the deepest fall of many strategies."""
    wealth = np.exp(np.cumsum(0.01 * returns, axis=0))
    peak = np.maximum.accumulate(wealth, axis=0)
    fall = wealth / peak - 1
    return fall.min(axis=0), fall.argmin(axis=0), wealth[-1]


@program(lambda d: (d.uniform(20_000, 30, low=0.01, high=0.06), d.uniform(30)))
def bond_curve(rates, coupons):
    """Prices, durations and convexities under many curves of rates."""
    t = np.arange(1, rates.shape[1] + 1)
    factors = np.exp(-rates * t)
    flows = coupons + (t == t[-1]) * 100.0
    value = factors * flows
    price = value.sum(1)
    return price, (value * t).sum(1) / price, (value * t * t).sum(1) / price


@program(lambda d: (d.normal(50_000), d.below(2**32, 50_000, dtype=np.uint32)))
def metropolis_of_many_chains(x, state):
    """Thirty steps of many independent chains with proposals from a fixed sequence."""

    def log_density(x):
        return np.logaddexp(-0.5 * (x - 2) ** 2, -0.5 * (x + 2) ** 2)

    accepted = np.zeros(())
    for _k in range(30):
        state = state * np.uint32(1664525) + np.uint32(1013904223)
        proposal = x + 2 * (state * 2.0**-32 - 0.5)
        state = state * np.uint32(1664525) + np.uint32(1013904223)
        take = np.log(state * 2.0**-32 + 1e-12) < log_density(proposal) - log_density(x)
        x = np.where(take, proposal, x)
        accepted = accepted + take.mean()
    return x, accepted / 30


@metropolis_of_many_chains.in_jax
def _(jnp, lax, x, seeds):
    def log_density(x):
        return jnp.logaddexp(-0.5 * (x - 2) ** 2, -0.5 * (x + 2) ** 2)

    def step(_, state):
        x, u, accepted = state
        u = u * jnp.uint32(1664525) + jnp.uint32(1013904223)
        proposal = x + 2 * (u * 2.0**-32 - 0.5)
        u = u * jnp.uint32(1664525) + jnp.uint32(1013904223)
        take = jnp.log(u * 2.0**-32 + 1e-12) < log_density(proposal) - log_density(x)
        return jnp.where(take, proposal, x), u, accepted + take.mean(dtype=jnp.float64)

    x, _, accepted = lax.fori_loop(0, 30, step, (x, seeds, 0.0))
    return x, accepted / 30


@program(lambda d: (d.uniform(400_000, 4),))
def quadrature_by_points(x):
    """An integral over a cube, with antithetic points and a control variate."""

    def f(x):
        return np.exp(-(x**2).sum(axis=1)) * np.cos(x.prod(axis=1))

    pairs = (f(x) + f(1 - x)) / 2
    control = x.sum(1) - x.shape[1] / 2
    beta = (pairs * control).mean() / (control**2).mean()
    better = pairs - beta * control
    return better.mean(), better.var() / len(x)
