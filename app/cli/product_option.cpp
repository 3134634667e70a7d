#include "app/cli/product_option.h"

#include "app/terminal/output.h"

#include "base/error.h"
#include "core/session/products.h"

namespace kvscope::cli {

void addProductOption(Options& command, std::string& products) {
    command
        .add("--products", products,
             "On a GPU, what chooses the kernels of products: built-in, or measured (calibrate --what products; "
             "built-in "
             "where nothing was measured), the default")
        .oneOf({nameOf(ProductSource::BuiltIn), nameOf(ProductSource::Measured)});
}

void chooseProducts(const std::string& products, Backend backend, std::string_view recorded) {
    if (!products.empty() && backend != Backend::Cuda)
        throw Error(ErrorKind::BadInput, "--products has no effect with --backend cpu: it is about a GPU's products",
                    "leave --products out");
    if (backend == Backend::Cuda) takeProductsOf(products.empty() ? recorded : std::string_view(products));
}

void remarkOnProducts(std::string_view recorded) {
    for (const std::string& remark : {productsRemark(), unlikeProducts(recorded)})
        if (!remark.empty()) printErr("{}\n", remark);
}

} // namespace kvscope::cli
