/* Special functions of float64 and float32: of the normal distribution, of gamma, of Bessel. One text for C and CUDA.
 *
 * No branches, so that loops of them are vectorised, but for those of polygamma. The polynomials interpolate at
 * Chebyshev's points; their coefficients are those of ge2/ops/special_reference.py, of which the references are
 * made. Errors: docs/design/special.md. What it calls is defined by special.h and special.cuh, which include it.
 */
#ifndef GE2_SPECIAL_FUNCTIONS_H
#define GE2_SPECIAL_FUNCTIONS_H

/* erf(x) / x of u = x^2, up to |x| = 1; relative error 2^-62 */
GE2_FN double ge2_erf_near_0_f64(double u) {
    double p = 0x1.05ffd737fb32ep-34;
    p = ge2_fma_f64(p, u, -0x1.389d4f2641625p-30);
    p = ge2_fma_f64(p, u, 0x1.f7b4bf3b13964p-27);
    p = ge2_fma_f64(p, u, -0x1.5f1ecb6f0764cp-23);
    p = ge2_fma_f64(p, u, 0x1.b9df224ca4b97p-20);
    p = ge2_fma_f64(p, u, -0x1.f4d1e3183f7aep-17);
    p = ge2_fma_f64(p, u, 0x1.f9a321d5b8e1ep-14);
    p = ge2_fma_f64(p, u, -0x1.c02db3dac435fp-11);
    p = ge2_fma_f64(p, u, 0x1.565bcd0dbaa38p-8);
    p = ge2_fma_f64(p, u, -0x1.b82ce31284e00p-6);
    p = ge2_fma_f64(p, u, 0x1.ce2f21a042b30p-4);
    p = ge2_fma_f64(p, u, -0x1.812746b0379e6p-2);
    return ge2_fma_f64(p, u, 0x1.20dd750429b6dp+0);
}

/* (1 + 2 a) exp(a^2) erfc(a) of t = (a - 4) / (a + 4), a from 0 to infinity; 2^-59 */
GE2_FN double ge2_erfcx_of_f64(double t) {
    double p = -0x1.3ab58f87cfb03p-33;
    p = ge2_fma_f64(p, t, -0x1.24000f0a15ee9p-32);
    p = ge2_fma_f64(p, t, 0x1.f5d7df6dfda90p-30);
    p = ge2_fma_f64(p, t, 0x1.b34e17ed4ff9fp-29);
    p = ge2_fma_f64(p, t, -0x1.fcc3a5268653fp-27);
    p = ge2_fma_f64(p, t, -0x1.611fc8f45b510p-26);
    p = ge2_fma_f64(p, t, 0x1.d98825ca9deb5p-24);
    p = ge2_fma_f64(p, t, 0x1.4cb0ece36623dp-24);
    p = ge2_fma_f64(p, t, -0x1.baf5e74545cc2p-21);
    p = ge2_fma_f64(p, t, 0x1.398374178fe8cp-22);
    p = ge2_fma_f64(p, t, 0x1.7f2545048fbf3p-18);
    p = ge2_fma_f64(p, t, -0x1.78862b6b1e3abp-17);
    p = ge2_fma_f64(p, t, -0x1.9958e21c32f5cp-16);
    p = ge2_fma_f64(p, t, 0x1.3be04c486a75ep-13);
    p = ge2_fma_f64(p, t, -0x1.a1df289a58f28p-13);
    p = ge2_fma_f64(p, t, -0x1.8d4a9b0690e08p-11);
    p = ge2_fma_f64(p, t, 0x1.49c6728a1a0f0p-8);
    p = ge2_fma_f64(p, t, -0x1.096238838fb04p-6);
    p = ge2_fma_f64(p, t, 0x1.3079edf67777bp-5);
    p = ge2_fma_f64(p, t, -0x1.0fb06dfe52605p-4);
    p = ge2_fma_f64(p, t, 0x1.7fee004e1295bp-4);
    p = ge2_fma_f64(p, t, -0x1.9ddb23c3e89f3p-4);
    p = ge2_fma_f64(p, t, 0x1.16ecefcfa5383p-4);
    p = ge2_fma_f64(p, t, 0x1.f7f5df66fd6bap-7);
    p = ge2_fma_f64(p, t, -0x1.1df1ad154a28ep-3);
    return ge2_fma_f64(p, t, 0x1.3ba5916e9fd7fp+0);
}

/* log(gamma(2 + t)) / t for |t| <= 1/2; 2^-61 */
GE2_FN double ge2_lgamma_near_2_f64(double t) {
    double p = 0x1.11fa5e7c86f7bp-24;
    p = ge2_fma_f64(p, t, -0x1.2009c1a550d0dp-23);
    p = ge2_fma_f64(p, t, 0x1.b40adb09a1e12p-23);
    p = ge2_fma_f64(p, t, -0x1.ce17528bcf460p-22);
    p = ge2_fma_f64(p, t, 0x1.012012be3900ap-20);
    p = ge2_fma_f64(p, t, -0x1.1276ebd557fb0p-19);
    p = ge2_fma_f64(p, t, 0x1.258f3057730fap-18);
    p = ge2_fma_f64(p, t, -0x1.3cb3be36ad88bp-17);
    p = ge2_fma_f64(p, t, 0x1.580e0afa55850p-16);
    p = ge2_fma_f64(p, t, -0x1.78de9ab752b81p-15);
    p = ge2_fma_f64(p, t, 0x1.a127afee53e7dp-14);
    p = ge2_fma_f64(p, t, -0x1.d3fd4b679c1c4p-13);
    p = ge2_fma_f64(p, t, 0x1.0b36af8779ca0p-11);
    p = ge2_fma_f64(p, t, -0x1.38ac5c2d48207p-10);
    p = ge2_fma_f64(p, t, 0x1.7add6eadb5317p-9);
    p = ge2_fma_f64(p, t, -0x1.e404fc218dbaep-8);
    p = ge2_fma_f64(p, t, 0x1.51322ac7d848ap-6);
    p = ge2_fma_f64(p, t, -0x1.13e001a55760ap-4);
    p = ge2_fma_f64(p, t, 0x1.4a34cc4a60fa6p-2);
    return ge2_fma_f64(p, t, 0x1.b0ee6072093cep-2);
}

/* x times what Stirling's formula lacks, of u = 1 / x^2, from x = 8 on; 2^-57 */
GE2_FN double ge2_stirling_f64(double u) {
    double p = 0x1.4bffc9d8b455bp-8;
    p = ge2_fma_f64(p, u, -0x1.ef8d748aeb0f2p-10);
    p = ge2_fma_f64(p, u, 0x1.b92c33f9445e5p-11);
    p = ge2_fma_f64(p, u, -0x1.38134d4f8896fp-11);
    p = ge2_fma_f64(p, u, 0x1.a01a017dcf9e1p-11);
    p = ge2_fma_f64(p, u, -0x1.6c16c16c149f4p-9);
    return ge2_fma_f64(p, u, 0x1.5555555555555p-4);
}

/* digamma(3/2 + s) by its distance from the root 1.46..., |s| <= 1/2; 2^-58 */
GE2_FN double ge2_digamma_near_root_f64(double s) {
    double p = 0x1.f255c4568ac4dp-14;
    p = ge2_fma_f64(p, s, -0x1.75c084e78a4cdp-13);
    p = ge2_fma_f64(p, s, 0x1.94e73cc9821e1p-14);
    p = ge2_fma_f64(p, s, -0x1.2fae5cb379bf2p-13);
    p = ge2_fma_f64(p, s, 0x1.53b23429da21bp-12);
    p = ge2_fma_f64(p, s, -0x1.fd8e50abf2196p-12);
    p = ge2_fma_f64(p, s, 0x1.6a3e76070c135p-11);
    p = ge2_fma_f64(p, s, -0x1.0fb38d217b800p-10);
    p = ge2_fma_f64(p, s, 0x1.99d3f5c0cad5ep-10);
    p = ge2_fma_f64(p, s, -0x1.336dbe66757c8p-9);
    p = ge2_fma_f64(p, s, 0x1.cd2011454fd05p-9);
    p = ge2_fma_f64(p, s, -0x1.5a06a5d662cb4p-8);
    p = ge2_fma_f64(p, s, 0x1.03c0adafa529cp-7);
    p = ge2_fma_f64(p, s, -0x1.863563f44f303p-7);
    p = ge2_fma_f64(p, s, 0x1.2564717896ec6p-6);
    p = ge2_fma_f64(p, s, -0x1.b9f8b11bfd3d0p-6);
    p = ge2_fma_f64(p, s, 0x1.4de9aa1779d23p-5);
    p = ge2_fma_f64(p, s, -0x1.fb44202a2306bp-5);
    p = ge2_fma_f64(p, s, 0x1.8512e5903903ep-4);
    p = ge2_fma_f64(p, s, -0x1.2feeeb98a78eap-3);
    p = ge2_fma_f64(p, s, 0x1.eca189b8e6f6dp-3);
    p = ge2_fma_f64(p, s, -0x1.b1cb63005ee98p-2);
    return ge2_fma_f64(p, s, 0x1.e6f0cbb873616p-1);
}

/* x^2 (log(x) - 1 / (2 x) - digamma(x)) of u = 1 / x^2, from x = 8 on; 2^-58 */
GE2_FN double ge2_digamma_far_f64(double u) {
    double p = -0x1.329c9079bcef2p-2;
    p = ge2_fma_f64(p, u, 0x1.47c69710dec6fp-4);
    p = ge2_fma_f64(p, u, -0x1.58e68c895ad5bp-6);
    p = ge2_fma_f64(p, u, 0x1.f077209c326c0p-8);
    p = ge2_fma_f64(p, u, -0x1.11110c0ff8839p-8);
    p = ge2_fma_f64(p, u, 0x1.0410410195bbfp-8);
    p = ge2_fma_f64(p, u, -0x1.1111111110d4fp-7);
    return ge2_fma_f64(p, u, 0x1.5555555555555p-4);
}

/* sqrt(x) exp(-x) I0(x) of t = 16 / x - 1, from x = 8 on; 2^-59 */
GE2_FN double ge2_bessel_far_0_f64(double t) {
    double p = 0x1.99840c2b2767bp-35;
    p = ge2_fma_f64(p, t, 0x1.11cf1a9200420p-36);
    p = ge2_fma_f64(p, t, -0x1.8fb64c52c2aabp-32);
    p = ge2_fma_f64(p, t, -0x1.0251ae550cb47p-33);
    p = ge2_fma_f64(p, t, 0x1.6d5db466faba9p-30);
    p = ge2_fma_f64(p, t, 0x1.cdb2c58c885a6p-32);
    p = ge2_fma_f64(p, t, -0x1.a732f8fd49952p-29);
    p = ge2_fma_f64(p, t, -0x1.11d420282498fp-30);
    p = ge2_fma_f64(p, t, 0x1.66709e2f1de6fp-28);
    p = ge2_fma_f64(p, t, 0x1.0c425fe6853eep-29);
    p = ge2_fma_f64(p, t, -0x1.e83a336ee24afp-28);
    p = ge2_fma_f64(p, t, -0x1.0514f4714df86p-28);
    p = ge2_fma_f64(p, t, 0x1.131c3faafadddp-27);
    p = ge2_fma_f64(p, t, 0x1.0823baef33ba1p-27);
    p = ge2_fma_f64(p, t, -0x1.80fb51360df0ep-28);
    p = ge2_fma_f64(p, t, -0x1.ce28cd4f04d9ep-27);
    p = ge2_fma_f64(p, t, -0x1.cc94ae6dbe8c1p-28);
    p = ge2_fma_f64(p, t, 0x1.03ddcc42e5eaep-27);
    p = ge2_fma_f64(p, t, 0x1.72156593b3b92p-26);
    p = ge2_fma_f64(p, t, 0x1.51cc22adc3b2ap-25);
    p = ge2_fma_f64(p, t, 0x1.7d0fbb49edc6ep-24);
    p = ge2_fma_f64(p, t, 0x1.3f49acfec4881p-22);
    p = ge2_fma_f64(p, t, 0x1.8e5139f8568cdp-20);
    p = ge2_fma_f64(p, t, 0x1.75e5ee703dcf4p-17);
    p = ge2_fma_f64(p, t, 0x1.1daa72b5e70bcp-13);
    p = ge2_fma_f64(p, t, 0x1.b87969bb93bbbp-9);
    return ge2_fma_f64(p, t, 0x1.9bd428ad249a5p-2);
}

/* the same of I1; 2^-59 */
GE2_FN double ge2_bessel_far_1_f64(double t) {
    double p = -0x1.aa74a103bfb65p-35;
    p = ge2_fma_f64(p, t, -0x1.000892f633b63p-36);
    p = ge2_fma_f64(p, t, 0x1.a01c7c9c867a8p-32);
    p = ge2_fma_f64(p, t, 0x1.e12f673b0c5edp-34);
    p = ge2_fma_f64(p, t, -0x1.7c46dcef479b1p-30);
    p = ge2_fma_f64(p, t, -0x1.aca9d5e6b6995p-32);
    p = ge2_fma_f64(p, t, 0x1.b8919158457f8p-29);
    p = ge2_fma_f64(p, t, 0x1.fd5cd5e830a2fp-31);
    p = ge2_fma_f64(p, t, -0x1.75b393ca37d99p-28);
    p = ge2_fma_f64(p, t, -0x1.fa6c2762394ccp-30);
    p = ge2_fma_f64(p, t, 0x1.ff6099e632559p-28);
    p = ge2_fma_f64(p, t, 0x1.fc9369c33a266p-29);
    p = ge2_fma_f64(p, t, -0x1.23aa112de2ab6p-27);
    p = ge2_fma_f64(p, t, -0x1.0aec33cc1a974p-27);
    p = ge2_fma_f64(p, t, 0x1.a8b11e3620df4p-28);
    p = ge2_fma_f64(p, t, 0x1.e38d304e98d0ap-27);
    p = ge2_fma_f64(p, t, 0x1.cb8b798693a02p-28);
    p = ge2_fma_f64(p, t, -0x1.21d8961e589b5p-27);
    p = ge2_fma_f64(p, t, -0x1.917107e7b92bbp-26);
    p = ge2_fma_f64(p, t, -0x1.7277e82f93396p-25);
    p = ge2_fma_f64(p, t, -0x1.ad8dff9af71c0p-24);
    p = ge2_fma_f64(p, t, -0x1.7613844c77ab6p-22);
    p = ge2_fma_f64(p, t, -0x1.ec8e0ff0aba3dp-20);
    p = ge2_fma_f64(p, t, -0x1.f89c2304d604dp-17);
    p = ge2_fma_f64(p, t, -0x1.cbc54df1edaa5p-13);
    p = ge2_fma_f64(p, t, -0x1.3f796198ee639p-7);
    return ge2_fma_f64(p, t, 0x1.8ebe783a84030p-2);
}

/* normal quantiles by M. Wichura's AS 241 (1988): q a / b of 0.425^2 - q^2 where |q| <= 0.425, */
GE2_FN double ge2_normal_a_f64(double r) {
    double p = 0x1.39a296f7d925ep+11;
    p = ge2_fma_f64(p, r, 0x1.052d26b2e45e4p+15);
    p = ge2_fma_f64(p, r, 0x1.06c1c55b78f20p+16);
    p = ge2_fma_f64(p, r, 0x1.66c3e869b752ap+15);
    p = ge2_fma_f64(p, r, 0x1.ad1d8cd4ee71dp+13);
    p = ge2_fma_f64(p, r, 0x1.ece5d2213c0ccp+10);
    p = ge2_fma_f64(p, r, 0x1.0a4888b1a436ep+7);
    return ge2_fma_f64(p, r, 0x1.b18d91e9eef75p+1);
}

GE2_FN double ge2_normal_b_f64(double r) {
    double p = 0x1.46a7eca984b69p+12;
    p = ge2_fma_f64(p, r, 0x1.c0e457cb1ae76p+14);
    p = ge2_fma_f64(p, r, 0x1.3317caa64f4bep+15);
    p = ge2_fma_f64(p, r, 0x1.4b772d5d65266p+14);
    p = ge2_fma_f64(p, r, 0x1.512322e75c89fp+12);
    p = ge2_fma_f64(p, r, 0x1.5797efdc8b3f7p+9);
    p = ge2_fma_f64(p, r, 0x1.5281b386e1ab5p+5);
    return ge2_fma_f64(p, r, 0x1.0000000000000p+0);
}

/* c / d of r - 1.6 where r = sqrt(-log(p)) <= 5, */
GE2_FN double ge2_normal_c_f64(double r) {
    double p = 0x1.9615ac0b7ace9p-11;
    p = ge2_fma_f64(p, r, 0x1.744eb6c45ec67p-6);
    p = ge2_fma_f64(p, r, 0x1.ef2abb9b85c37p-3);
    p = ge2_fma_f64(p, r, 0x1.453cc085375b2p+0);
    p = ge2_fma_f64(p, r, 0x1.d2ecb1a3d02c4p+1);
    p = ge2_fma_f64(p, r, 0x1.713f71462256ap+2);
    p = ge2_fma_f64(p, r, 0x1.2857748cab19bp+2);
    return ge2_fma_f64(p, r, 0x1.6c665fde9526ap+0);
}

GE2_FN double ge2_normal_d_f64(double r) {
    double p = 0x1.20d3f686439e4p-30;
    p = ge2_fma_f64(p, r, 0x1.1f18cbfdf2728p-11);
    p = ge2_fma_f64(p, r, 0x1.f207a7eab17bfp-7);
    p = ge2_fma_f64(p, r, 0x1.2f5123394f040p-3);
    p = ge2_fma_f64(p, r, 0x1.61292f23385c9p-1);
    p = ge2_fma_f64(p, r, 0x1.ad278e6526633p+0);
    p = ge2_fma_f64(p, r, 0x1.06cefbb46a449p+1);
    return ge2_fma_f64(p, r, 0x1.0000000000000p+0);
}

/* and e / f of r - 5 beyond */
GE2_FN double ge2_normal_e_f64(double r) {
    double p = 0x1.afb74d693bf93p-23;
    p = ge2_fma_f64(p, r, 0x1.c6ec6cc59e02ap-16);
    p = ge2_fma_f64(p, r, 0x1.45c1908425345p-10);
    p = ge2_fma_f64(p, r, 0x1.b2b41193b4ee7p-6);
    p = ge2_fma_f64(p, r, 0x1.2fad9315255cfp-2);
    p = ge2_fma_f64(p, r, 0x1.c8ea6461fa445p+0);
    p = ge2_fma_f64(p, r, 0x1.5daea6e875003p+2);
    return ge2_fma_f64(p, r, 0x1.aa1b1c13ee526p+2);
}

GE2_FN double ge2_normal_f_f64(double r) {
    double p = 0x1.269bff1f8c190p-49;
    p = ge2_fma_f64(p, r, 0x1.31446f740b9e0p-23);
    p = ge2_fma_f64(p, r, 0x1.35c2c496374bfp-16);
    p = ge2_fma_f64(p, r, 0x1.9c8bc979dc5d7p-11);
    p = ge2_fma_f64(p, r, 0x1.e76f93215462ap-7);
    p = ge2_fma_f64(p, r, 0x1.186eb183443fbp-3);
    p = ge2_fma_f64(p, r, 0x1.331d34fc7d77fp-1);
    return ge2_fma_f64(p, r, 0x1.0000000000000p+0);
}

/* ---- errors of a normal variable */

GE2_FN double ge2_erf_small_f64(double x) { return x * ge2_erf_near_0_f64(x * x); }

/* exp(a^2) erfc(a) for a >= 0 */
GE2_FN double ge2_erfcx_positive_f64(double a) {
    double y = ge2_erfcx_of_f64((a - 4.0) / (a + 4.0)) / (1.0 + 2.0 * a);
    return a > 0x1p60 ? 0x1.20dd750429b6dp-1 / a : y;
}

/* exp(-(square + low)) erfcx(a): the low part is what rounding took from the square */
GE2_FN double ge2_erfc_by_f64(double a, double square, double low) {
    double power = ge2_exp_f64(-square);
    return ge2_fma_f64(power, -low, power) * ge2_erfcx_positive_f64(a);
}

GE2_FN double ge2_erfc_far_f64(double size) {
    double a = size > 40.0 ? 40.0 : size, square = a * a;
    return ge2_erfc_by_f64(a, square, ge2_fma_f64(a, a, -square));
}

GE2_FN double ge2_erfcx_f64(double x) {
    double a = ge2_abs_f64(x), b = x < -30.0 ? 30.0 : a, square = b * b;
    double power = 2.0 * ge2_exp_f64(square), y = ge2_erfcx_positive_f64(x < 0 ? b : a);
    double low = square < 720.0 ? ge2_fma_f64(b, b, -square) : 0.0;
    double left = power < GE2_INFINITY_F64 ? ge2_fma_f64(power, low, power) - y : power;
    return x < 0 ? left : y;
}

/* the integral of the normal density up to x */
GE2_FN double ge2_ndtr_f64(double x) {
    double size = ge2_abs_f64(x), a = size > 60.0 ? 60.0 : size, half = 0.5 * a, square = half * a;
    double low = ge2_fma_f64(half, a, -square);
    double beyond = 0.5 * ge2_erfc_by_f64(a * 0x1.6a09e667f3bcdp-1, square, low);
    double near = 0.5 + 0.5 * ge2_erf_small_f64(x * 0x1.6a09e667f3bcdp-1);
    double y = x < 0 ? beyond : 1.0 - beyond;
    return size < 0.7 ? near : y;
}

GE2_FN double ge2_log_ndtr_f64(double x) {
    double tail = 0.5 * ge2_erfcx_positive_f64(ge2_abs_f64(x) * 0x1.6a09e667f3bcdp-1);
    double low = ge2_log_f64(tail) - 0.5 * x * x, high = ge2_log1p_f64(-ge2_ndtr_f64(-x));
    return x < -1.0 ? low : high;
}

GE2_FN double ge2_quantile_near_f64(double u) { return ge2_normal_a_f64(u) / ge2_normal_b_f64(u); }

/* the size of the quantile of a probability `rest`, or of 1 - rest, below 0.075 */
GE2_FN double ge2_quantile_far_f64(double rest) {
    double r = ge2_sqrt_f64(-ge2_log_f64(rest)), s = r - 1.6, t = r - 5.0;
    double far = ge2_normal_c_f64(s) / ge2_normal_d_f64(s);
    double farther = ge2_normal_e_f64(t) / ge2_normal_f_f64(t);
    double y = r > 5.0 ? farther : far;
    return rest == 0 ? GE2_INFINITY_F64 : y;
}

GE2_FN double ge2_ndtri_f64(double p) {
    double q = p - 0.5, near = q * ge2_quantile_near_f64(0.180625 - q * q);
    double far = ge2_quantile_far_f64(p < 0.5 ? p : 1.0 - p);
    return ge2_abs_f64(q) <= 0.425 ? near : ge2_copysign_f64(far, q);
}

GE2_FN double ge2_erfinv_f64(double x) {
    double q = 0.5 * x, near = x * (ge2_quantile_near_f64(0.180625 - q * q) * 0x1.6a09e667f3bcdp-2);
    double far = 0x1.6a09e667f3bcdp-1 * ge2_quantile_far_f64(0.5 * (1.0 - ge2_abs_f64(x)));
    return ge2_abs_f64(q) <= 0.425 ? near : ge2_copysign_f64(far, x);
}

/* ---- odds, and products with logarithms */

GE2_FN double ge2_logistic_f64(double x) {
    double power = ge2_exp_f64(-ge2_abs_f64(x));
    return (x < 0 ? power : 1.0) / (1.0 + power);
}

GE2_FN float ge2_logistic_f32(float x) {
    float power = ge2_exp_f32(-ge2_abs_f32(x));
    return (x < 0 ? power : 1.0f) / (1.0f + power);
}

/* 2 p - 1 is exact from 1/4 on */
GE2_FN double ge2_logit_f64(double p) {
    double s = 2.0 * p - 1.0, near = 2.0 * ge2_atanh_f64(s), far = ge2_log_f64(p / (1.0 - p));
    return ge2_abs_f64(s) < 0.5 ? near : far;
}

GE2_FN double ge2_xlogy_f64(double x, double y) {
    double product = x * ge2_log_f64(y);
    return x == 0 ? (y == y ? 0.0 : y) : product;
}

GE2_FN double ge2_xlog1py_f64(double x, double y) {
    double product = x * ge2_log1p_f64(y);
    return x == 0 ? (y == y ? 0.0 : y) : product;
}

/* ---- gamma. From 1/2 below 0 on by reflection: there the error is small beside 1, not beside a root. */

/* (z - 1) ... (z - n), n from 1 to 6 */
GE2_FN double ge2_falling_f64(double z, double n) {
    double y = n < 1.0 ? 1.0 : z - 1.0;
    y *= n < 2.0 ? 1.0 : z - 2.0;
    y *= n < 3.0 ? 1.0 : z - 3.0;
    y *= n < 4.0 ? 1.0 : z - 4.0;
    y *= n < 5.0 ? 1.0 : z - 5.0;
    return y * (n < 6.0 ? 1.0 : z - 6.0);
}

/* log|gamma(z)| for z >= -1/2: up to 8 from that of z - n, which is within 1/2 of 2 */
GE2_FN double ge2_gammaln_right_f64(double z) {
    double w = z < 8.0 ? z : 2.0, k = ge2_rint_f64(w), t = w - k;
    double rising = k > 1.5 ? 1.0 : k > 0.5 ? w : w * (w + 1.0);
    double factor = k > 1.5 ? ge2_falling_f64(w, k - 2.0) : rising;
    double step = ge2_log_f64(ge2_abs_f64(factor));
    double near = t * ge2_lgamma_near_2_f64(t) + (k > 1.5 ? step : -step);
    double inverse = 1.0 / z, tail = ge2_stirling_f64(inverse * inverse) * inverse;
    double far = (z - 0.5) * (ge2_log_f64(z) - 1.0) + (0x1.acfe390c97d69p-2 + tail);
    return z < 8.0 ? near : far;
}

GE2_FN double ge2_gammaln_f64(double x) {
    double a = ge2_abs_f64(x), right = ge2_gammaln_right_f64(x < -0.5 ? a : x);
    double turn = ge2_abs_f64(ge2_sin_near_f64(0x1.921fb54442d18p+1 * (a - ge2_rint_f64(a))));
    double left = ge2_log_f64(0x1.921fb54442d18p+1 / (a * turn)) - right;
    double y = x < -0.5 ? (turn == 0 ? GE2_INFINITY_F64 : left) : right;
    return a == GE2_INFINITY_F64 ? x : y;
}

/* 1 / (z - 1) + ... + 1 / (z - n) for n up to 6 */
GE2_FN double ge2_reciprocals_f64(double z, double n) {
    double over = 0.0, under = 1.0;
    for (int i = 1; i < 7; i++) {
        double f = n < i ? 1.0 : z - i;
        over = ge2_fma_f64(over, f, n < i ? 0.0 : under);
        under *= f;
    }
    return over / under;
}

/* for z > 0: up to 8 from that between 1 and 2, where its root is */
GE2_FN double ge2_digamma_right_f64(double z) {
    double w = z < 8.0 ? z : 1.5, n = w < 1.0 ? 0.0 : ge2_floor_f64(w) - 1.0;
    double s = w < 1.0 ? w - 0.5 : w - n - 1.5;
    double step = w < 1.0 ? -1.0 / w : ge2_reciprocals_f64(w, n);
    double near = ((s + 0x1.3a4f395283812p-5) + 0x1.e563779a1f5b1p-60) * ge2_digamma_near_root_f64(s) + step;
    double inverse = 1.0 / z, u = inverse * inverse;
    double far = ge2_log_f64(z) - 0.5 * inverse - u * ge2_digamma_far_f64(u);
    return z < 8.0 ? near : far;
}

GE2_FN double ge2_digamma_f64(double x) {
    double right = ge2_digamma_right_f64(x < 0 ? 1.0 - x : x), f = x - ge2_rint_f64(x);
    double left = right - 0x1.921fb54442d18p+1 / ge2_tan_near_f64(0x1.921fb54442d18p+1 * f);
    double y = x < 0 ? (f == 0 ? GE2_NAN_F64 : left) : right;
    return x == 0 ? -1.0 / x : y;
}

/* derivative n of digamma, n >= 1, for z > 0, without its sign: the sum of n! / (z + k)^(n + 1), of which
 * Euler's and Maclaurin's formula has the end */
GE2_FN double ge2_polygamma_right_f64(double z, int n) {
    double total = 0.0, y = z, before = 1.0; /* (n - 1)! */
    for (int i = 2; i < n; i++) before *= i;
    for (int i = 0; i < 16 + 2 * n; i++) {
        double near = y < 16 + 2 * n ? 1.0 : 0.0;
        total += near / ge2_integer_pow_f64(y, n + 1);
        y += near;
    }
    double w = 1.0 / y, u = w * w, r = before * (double)(n * (n + 1)) * u;
    double rest = before + 0.5 * before * n * w + r * 0x1.5555555555555p-4;
    r *= (double)((n + 2) * (n + 3)) * u, rest -= r * 0x1.6c16c16c16c17p-10;
    r *= (double)((n + 4) * (n + 5)) * u, rest += r * 0x1.1566abc011567p-15;
    r *= (double)((n + 6) * (n + 7)) * u, rest -= r * 0x1.bbd779334ef0bp-21;
    r *= (double)((n + 8) * (n + 9)) * u, rest += r * 0x1.66a8f2bf70ebep-26;
    r *= (double)((n + 10) * (n + 11)) * u, rest -= r * 0x1.22805d644267fp-31;
    r *= (double)((n + 12) * (n + 13)) * u, rest += r * 0x1.d6db2c4e09162p-37;
    r *= (double)((n + 14) * (n + 15)) * u, rest -= r * 0x1.7da4e1f79955cp-42;
    return before * n * total + ge2_integer_pow_f64(w, n) * rest;
}

/* derivative n of cot(pi x) by c = cot(pi x): a polynomial, made from that of n - 1; n up to 14 */
GE2_FN double ge2_cotangents_f64(double c, int n) {
    double p[18] = {0.0, 1.0}, q[18] = {0.0};
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < k + 3; i++) {
            double slope = (i + 1) * p[i + 1] + (i ? (i - 1) * p[i ? i - 1 : 0] : 0.0);
            q[i] = -0x1.921fb54442d18p+1 * slope;
        }
        for (int i = 0; i < k + 3; i++) p[i] = q[i];
    }
    double y = p[n + 1];
    for (int i = n; i >= 0; i--) y = ge2_fma_f64(y, c, p[i]);
    return y;
}

GE2_FN double ge2_polygamma_f64(double x, int n) {
    double right = ge2_polygamma_right_f64(x < 0 ? 1.0 - x : x, n);
    double c = 1.0 / ge2_tan_near_f64(0x1.921fb54442d18p+1 * (x - ge2_rint_f64(x)));
    double left = -right - 0x1.921fb54442d18p+1 * ge2_cotangents_f64(c, n);
    return x < 0 ? left : n % 2 ? right : -right;
}

/* ---- modified Bessel functions I(n, x) / x^n, even, and those times exp(-|x|) */

/* up to 8: a power series without a sign */
GE2_FN double ge2_bessel_near_f64(double a, int n) {
    double u = 0.25 * a * a, y = 1.0, by = 1.0;
    for (int k = 26; k > 13; k--) y = ge2_fma_f64(y * u, 1.0 / (k * (k + n)), 1.0); /* compilers */
    for (int k = 13; k > 0; k--) y = ge2_fma_f64(y * u, 1.0 / (k * (k + n)), 1.0);  /* unroll 16 */
    for (int k = 1; k <= n; k++) by *= 0.5 / k;
    return by * y;
}

/* from 8 on, times exp(-a): a recurrence up from 0 and 1 */
GE2_FN double ge2_bessel_far_f64(double a, int n) {
    double t = 16.0 / a - 1.0, lower = ge2_bessel_far_0_f64(t), y = ge2_bessel_far_1_f64(t);
    for (int k = 1; k < n; k++) {
        double next = lower - 2.0 * k / a * y;
        lower = y, y = next;
    }
    return (n ? y : lower) / (ge2_sqrt_f64(a) * ge2_integer_pow_f64(a, n));
}

GE2_FN double ge2_bessel_f64(double x, int n) {
    double size = ge2_abs_f64(x), a = size > 2000.0 ? 2000.0 : size, half = ge2_exp_f64(0.5 * a);
    double near = ge2_bessel_near_f64(a < 8.0 ? a : 8.0, n);
    double far = ge2_bessel_far_f64(a < 8.0 ? 8.0 : a, n);
    double y = a < 8.0 ? near : far * half * half;
    return x == x ? y : x;
}

GE2_FN double ge2_bessel_scaled_f64(double x, int n) {
    double a = ge2_abs_f64(x), near = ge2_bessel_near_f64(a < 8.0 ? a : 8.0, n) * ge2_exp_f64(-a);
    double y = a < 8.0 ? near : ge2_bessel_far_f64(a < 8.0 ? 8.0 : a, n);
    return x == x ? y : x;
}

/* ---- float32 by polynomials of its own, where float64 would be what takes the time */

/* erfinv(x) / x of w = -log(1 - x^2) (M. Giles, 2010): up to w = 5, of s = w - 2.5; relative error 2^-28 */
GE2_FN float ge2_erfinv_near_f32(float s) {
    float p = 0x1.70efd4p-32f;
    p = ge2_fma_f32(p, s, -0x1.2d6e68p-27f);
    p = ge2_fma_f32(p, s, 0x1.35e02p-26f);
    p = ge2_fma_f32(p, s, 0x1.f43f6p-22f);
    p = ge2_fma_f32(p, s, -0x1.ccfc5ap-19f);
    p = ge2_fma_f32(p, s, -0x1.4cfcfap-18f);
    p = ge2_fma_f32(p, s, 0x1.c9c598p-13f);
    p = ge2_fma_f32(p, s, -0x1.486646p-10f);
    p = ge2_fma_f32(p, s, -0x1.11c42p-8f);
    p = ge2_fma_f32(p, s, 0x1.f91e8cp-3f);
    return ge2_fma_f32(p, s, 0x1.805c5ep+0f);
}

/* and beyond, of s = sqrt(w) - 3; 2^-29 */
GE2_FN float ge2_erfinv_far_f32(float s) {
    float p = -0x1.ea3aap-16f;
    p = ge2_fma_f32(p, s, 0x1.504238p-13f);
    p = ge2_fma_f32(p, s, -0x1.238474p-12f);
    p = ge2_fma_f32(p, s, -0x1.f64f18p-14f);
    p = ge2_fma_f32(p, s, 0x1.82c7d6p-10f);
    p = ge2_fma_f32(p, s, -0x1.d38fbep-9f);
    p = ge2_fma_f32(p, s, 0x1.74be2ap-8f);
    p = ge2_fma_f32(p, s, -0x1.f4e008p-8f);
    p = ge2_fma_f32(p, s, 0x1.358106p-7f);
    p = ge2_fma_f32(p, s, 0x1.006dcap+0f);
    return ge2_fma_f32(p, s, 0x1.6a9efcp+1f);
}

GE2_FN float ge2_erfinv_f32(float x) {
    float rest = ge2_fma_f32(-x, x, 1.0f), w = -ge2_log_f32(rest);
    float near = ge2_erfinv_near_f32(w - 2.5f), far = ge2_erfinv_far_f32(ge2_sqrt_f32(w) - 3.0f);
    return x * (rest == 0 ? (float)GE2_INFINITY_F64 : w < 5.0f ? near : far);
}

/* log(gamma(2 + t)) / t for |t| <= 1/2; 2^-28 */
GE2_FN float ge2_lgamma_near_2_f32(float t) {
    float p = -0x1.1af50ap-12f;
    p = ge2_fma_f32(p, t, 0x1.2ac02cp-11f);
    p = ge2_fma_f32(p, t, -0x1.34c3b8p-10f);
    p = ge2_fma_f32(p, t, 0x1.795d1cp-9f);
    p = ge2_fma_f32(p, t, -0x1.e42476p-8f);
    p = ge2_fma_f32(p, t, 0x1.51357ep-6f);
    p = ge2_fma_f32(p, t, -0x1.13dfecp-4f);
    p = ge2_fma_f32(p, t, 0x1.4a34ccp-2f);
    return ge2_fma_f32(p, t, 0x1.b0ee6p-2f);
}

/* (z - 1) ... (z - n), n from 1 to 6 */
GE2_FN float ge2_falling_f32(float z, float n) {
    float y = n < 1.0f ? 1.0f : z - 1.0f;
    y *= n < 2.0f ? 1.0f : z - 2.0f;
    y *= n < 3.0f ? 1.0f : z - 3.0f;
    y *= n < 4.0f ? 1.0f : z - 4.0f;
    y *= n < 5.0f ? 1.0f : z - 5.0f;
    return y * (n < 6.0f ? 1.0f : z - 6.0f);
}

/* as in float64, with three terms of Stirling's series (DLMF 5.11.1) */
GE2_FN float ge2_gammaln_right_f32(float z) {
    float w = z < 8.0f ? z : 2.0f, k = ge2_rint_f32(w), t = w - k;
    float rising = k > 1.5f ? 1.0f : k > 0.5f ? w : w * (w + 1.0f);
    float factor = ge2_abs_f32(k > 1.5f ? ge2_falling_f32(w, k - 2.0f) : rising);
    float step = ge2_log_f32(z < 8.0f ? factor : z);
    float near = ge2_fma_f32(t, ge2_lgamma_near_2_f32(t), k > 1.5f ? step : -step);
    float inverse = 1.0f / z, u = inverse * inverse;
    float tail = ge2_fma_f32(ge2_fma_f32(0x1.a01a02p-11f, u, -0x1.6c16c2p-9f), u, 0x1.555556p-4f);
    float far = (z - 0.5f) * (step - 1.0f) + ge2_fma_f32(tail, inverse, 0x1.acfe3ap-2f);
    return z < 8.0f ? near : far;
}

GE2_FN float ge2_gammaln_f32(float x) {
    float a = ge2_abs_f32(x), right = ge2_gammaln_right_f32(x < -0.5f ? a : x);
    float turn = ge2_abs_f32(ge2_sin_f32(0x1.921fb6p+1f * (a - ge2_rint_f32(a))));
    float left = ge2_log_f32(0x1.921fb6p+1f / (a * turn)) - right;
    float y = x < -0.5f ? (turn == 0 ? (float)GE2_INFINITY_F64 : left) : right;
    return a == (float)GE2_INFINITY_F64 ? x : y;
}

/* the series of ge2_bessel_near_f64 */
GE2_FN float ge2_bessel_near_f32(float a, int n) {
    float u = 0.25f * a * a, y = 1.0f, by = 1.0f;
    for (int k = 15; k > 0; k--) y = ge2_fma_f32(y * u, 1.0f / (k * (k + n)), 1.0f);
    for (int k = 1; k <= n; k++) by *= 0.5f / k;
    return by * y;
}

/* sqrt(x) exp(-x) I0(x) of t = 16 / x - 1, from x = 8 on; 2^-29 */
GE2_FN float ge2_bessel_far_0_f32(float t) {
    float p = 0x1.d3e5a4p-24f;
    p = ge2_fma_f32(p, t, 0x1.84dc98p-22f);
    p = ge2_fma_f32(p, t, 0x1.8c1c5ap-20f);
    p = ge2_fma_f32(p, t, 0x1.74e2p-17f);
    p = ge2_fma_f32(p, t, 0x1.1dab2ap-13f);
    p = ge2_fma_f32(p, t, 0x1.b87988p-9f);
    return ge2_fma_f32(p, t, 0x1.9bd428p-2f);
}

/* the same of I1; 2^-29 */
GE2_FN float ge2_bessel_far_1_f32(float t) {
    float p = -0x1.09bee2p-23f;
    p = ge2_fma_f32(p, t, -0x1.c37e28p-22f);
    p = ge2_fma_f32(p, t, -0x1.e9a59ep-20f);
    p = ge2_fma_f32(p, t, -0x1.f778e2p-17f);
    p = ge2_fma_f32(p, t, -0x1.cbc664p-13f);
    p = ge2_fma_f32(p, t, -0x1.3f796ap-7f);
    return ge2_fma_f32(p, t, 0x1.8ebe78p-2f);
}

GE2_FN float ge2_bessel_far_f32(float a, int n) {
    float t = 16.0f / a - 1.0f, lower = ge2_bessel_far_0_f32(t), y = ge2_bessel_far_1_f32(t);
    for (int k = 1; k < n; k++) {
        float next = lower - 2.0f * k / a * y;
        lower = y, y = next;
    }
    return (n ? y : lower) / (ge2_sqrt_f32(a) * ge2_integer_pow_f32(a, n));
}

GE2_FN float ge2_bessel_f32(float x, int n) {
    float size = ge2_abs_f32(x), a = size > 200.0f ? 200.0f : size, half = ge2_exp_f32(0.5f * a);
    float near = ge2_bessel_near_f32(a < 8.0f ? a : 8.0f, n);
    float far = ge2_bessel_far_f32(a < 8.0f ? 8.0f : a, n);
    float y = a < 8.0f ? near : far * half * half;
    return x == x ? y : x;
}

GE2_FN float ge2_bessel_scaled_f32(float x, int n) {
    float a = ge2_abs_f32(x), near = ge2_bessel_near_f32(a < 8.0f ? a : 8.0f, n) * ge2_exp_f32(-a);
    float y = a < 8.0f ? near : ge2_bessel_far_f32(a < 8.0f ? 8.0f : a, n);
    return x == x ? y : x;
}

/* ---- float32 by float64, rounded once */

#define GE2_ONCE(name) \
    GE2_FN float ge2_##name##_f32(float x) { return (float)ge2_##name##_f64((double)x); }
#define GE2_ONCE_OF_2(name) \
    GE2_FN float ge2_##name##_f32(float x, float y) { \
        return (float)ge2_##name##_f64((double)x, (double)y); \
    }
#define GE2_ONCE_WITH(name) \
    GE2_FN float ge2_##name##_f32(float x, int n) { return (float)ge2_##name##_f64((double)x, n); }

GE2_ONCE(erfcx)
GE2_ONCE(ndtr)
GE2_ONCE(log_ndtr)
GE2_ONCE(ndtri)
GE2_ONCE(logit)
GE2_ONCE_OF_2(xlogy)
GE2_ONCE_OF_2(xlog1py)
GE2_ONCE(digamma)
GE2_ONCE_WITH(polygamma)

#endif
