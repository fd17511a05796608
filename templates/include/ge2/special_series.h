/* Polynomials of the special functions in float64. One text for C and CUDA.
 *
 * They interpolate at Chebyshev's points; their coefficients are those of ge2/ops/special_reference.py, of which the
 * references are made.
 */
#ifndef GE2_SPECIAL_SERIES_H
#define GE2_SPECIAL_SERIES_H

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

#endif
