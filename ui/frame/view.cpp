#include "ui/frame/view.h"

#include "ui/frame/export_strip.h"

#include <QApplication>
#include <QClipboard>
#include <QPixmap>

namespace kvscope::ui {

void View::copyImage() { QApplication::clipboard()->setImage(grab().toImage()); }

ExportStrip& View::strip() {
    if (!strip_) {
        strip_ = new ExportStrip(this);
        connect(strip_, &ExportStrip::finished, this, &View::numbersExported);
    }
    return *strip_;
}

void View::exportNumbers(const QString& path) { strip().toFile(numbers(), path); }
void View::copyNumbers() { strip().toClipboard(numbers()); }

} // namespace kvscope::ui
