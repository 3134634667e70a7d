// Half to float32, a vector at a time, exactly on every instruction set. Read once for each of them: hence the guard of
// Highway's own headers in place of a pragma.
#if defined(KVSCOPE_KERNELS_CPU_HALF_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOPE_KERNELS_CPU_HALF_SIMD_H
#undef KVSCOPE_KERNELS_CPU_HALF_SIMD_H
#else
#define KVSCOPE_KERNELS_CPU_HALF_SIMD_H
#endif

#include <cstdint>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvscope::cpu::HWY_NAMESPACE {

// Whether the machine converts from half itself. Where it does not, Highway converts, and makes 65536 of infinity.
// The constant is true for the instruction sets that do; Highway gives the better ones of x86 the smaller numbers.
#if HWY_ARCH_X86
constexpr bool kHardwareHalf = HWY_TARGET <= HWY_AVX2;
#else
constexpr bool kHardwareHalf = HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128;
#endif

/// As many halves as the vector has lanes, from any address.
template <class D> HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> LoadHalves(D d, const void* HWY_RESTRICT at) {
    namespace hn = hwy::HWY_NAMESPACE;
    if constexpr (kHardwareHalf) {
        const hn::Rebind<hwy::float16_t, D> halves;
        return hn::PromoteTo(d, hn::LoadU(halves, static_cast<const hwy::float16_t*>(at)));
    } else {
        const hn::Rebind<std::uint16_t, D> raw;
        const hn::RebindToUnsigned<D> bits;
        const hn::RebindToSigned<D> integers;
        const auto all = hn::PromoteTo(bits, hn::LoadU(raw, static_cast<const std::uint16_t*>(at)));
        const auto sign = hn::ShiftLeft<16>(hn::And(all, hn::Set(bits, 0x8000u)));
        const auto rest = hn::And(all, hn::Set(bits, 0x7FFFu)); // exponent and mantissa
        const auto normal = hn::Add(hn::ShiftLeft<13>(rest), hn::Set(bits, 112u << 23));
        const auto subnormal =
            hn::Mul(hn::ConvertTo(d, hn::BitCast(integers, rest)), hn::Set(d, 0x1p-24f)); // the mantissa alone
        const auto isSubnormal = hn::Lt(hn::BitCast(integers, rest), hn::Set(integers, 0x400));
        const auto isFinite = hn::Lt(hn::BitCast(integers, rest), hn::Set(integers, 0x7C00));
        const auto finite = hn::IfThenElse(hn::RebindMask(bits, isSubnormal), hn::BitCast(bits, subnormal), normal);
        const auto other = hn::Or(normal, hn::Set(bits, 0x7F800000u)); // infinity and NaN
        return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(hn::RebindMask(bits, isFinite), finite, other)));
    }
}

} // namespace kvscope::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
