// Which table chooses the kernels of products on a GPU. The whole process has one, so that verifications, forks and
// comparisons in it multiply alike. It is the compiled-in table or the one in a file of the user's cache folder. Only
// measureProducts, which a person asks for, writes that file, so the same machine chooses alike at every start.
#pragma once

#include "base/progress.h"
#include "kernels/product_table.h"

#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

namespace kvscope {

class Model;

enum class ProductSource : std::uint8_t {
    BuiltIn, // the compiled-in choices alone
    Measured // the file's where there is one
};
constexpr const char* nameOf(ProductSource source) {
    return source == ProductSource::BuiltIn ? "built-in" : "measured";
}

/// Key of table `run_meta`, of a run on a GPU: productsInUse().
inline constexpr const char* kProductsMeta = "products";

/// The table by which sessions choose that begin from now on: Measured at first, or as KVSCOPE_PRODUCTS says. Any
/// thread may call these two. @throws Error(BadInput) where KVSCOPE_PRODUCTS is neither word
ProductSource productSource();
void setProductSource(ProductSource source);

/// The file of a machine's measured choices, in $XDG_CACHE_HOME/kvscope/products or ~/.cache/kvscope/products; empty
/// where there is no such folder.
std::string productFile(const ProductMachine& machine);

struct LoadedProducts {
    std::shared_ptr<const ProductTable> table; // the compiled-in one where the file cannot be used
    std::string remark;                        // one sentence that says why not; empty: nothing was wrong
};
LoadedProducts loadProducts(const ProductMachine& machine, ProductSource source);
/// Writes the table's measured choices as a whole. @throws Error(Storage)
void storeProducts(const ProductTable& table);

/// The table for this machine. It is read at the first call; a file that changes later changes nothing in this process.
/// Any thread may call this and the next two.
std::shared_ptr<const ProductTable> productsOf(const ProductMachine& machine);
/// ProductTable::name() of the table that productsOf() gave last; empty: no session has asked.
std::string productsInUse();
/// LoadedProducts::remark of that table.
std::string productsRemark();

/// Sets the source by the name of the table with which a run was recorded, so that a session that goes on from the run
/// multiplies as the run did, where that is possible. An empty name changes nothing.
void takeProductsOf(std::string_view recordedName);
/// One sentence where a recorded run's products were chosen by another table than productsInUse(); empty where they
/// were not, or where one of the names is not known.
std::string unlikeProducts(std::string_view recordedName);

struct MeasuredProducts {
    std::string file, name; // where the choices are kept; of the table
    int measured = 0;       // shapes; those that the file had are kept as they are
    int kept = 0;
};
/// Measures the products of a model's bf16 matrices on the GPU, as far as the file does not have them. @throws
/// Error(Unsupported | Device | OutOfMemory | Storage | Cancelled)
MeasuredProducts measureProducts(const Model& model, const Progress& progress, const std::stop_token& stop);

} // namespace kvscope
