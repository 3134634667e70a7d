#include "ui/frame/picture.h"

#include "ui/frame/saved_file.h"
#include "ui/frame/svg_file.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"

#include <QCoreApplication>
#include <QFileInfo>
#include <QPageSize>
#include <QPainter>
#include <QPdfWriter>
#include <QTemporaryDir>
#include <QVariant>
#include <QWidget>

#include <algorithm>
#include <optional>

namespace kvscope::ui {
namespace {

constexpr char kScaleProperty[] = "pictureScale";

QString say(const char* text) { return QCoreApplication::translate("kvscope::ui::Picture", text); }

/// Sets the theme and the scale of the picture while the picture is made, and afterwards those of the window. Nothing
/// is repainted in between, so the window does not flicker.
class StyleForNow {
public:
    StyleForNow(View& view, const PictureStyle& style) : view_(view) {
        setPictureScale(view_, style.scale);
        if (style.theme.isEmpty() || style.theme == Theme::current().id) return;
        theme_.emplace(view_, Theme::byId(style.theme));
        view_.applyTheme(Theme::current());
    }
    ~StyleForNow() {
        setPictureScale(view_, 0);
        if (!theme_) return;
        theme_.reset();
        view_.applyTheme(Theme::current());
    }
    StyleForNow(const StyleForNow&) = delete;
    StyleForNow& operator=(const StyleForNow&) = delete;

private:
    View& view_;
    std::optional<ThemeOfOneWidget> theme_;
};

QString problemOf(const PictureStyle& style) {
    const QSizeF pixels = QSizeF(style.size) * std::max(style.scale, 1.0);
    if (style.size.width() < kSmallestPicture || style.size.height() < kSmallestPicture)
        return say("A picture has at least %1 x %1 pixels.").arg(kSmallestPicture);
    if (style.scale <= 0 || style.scale > kLargestScale)
        return say("%1 is not a scale for a picture: choose 1 to %2.").arg(style.scale).arg(kLargestScale);
    if (pixels.width() > kLargestPicture || pixels.height() > kLargestPicture)
        return say("%1 x %2 pixels are too many: choose a smaller size or scale, up to %3 a side.")
            .arg(std::int64_t(pixels.width()))
            .arg(std::int64_t(pixels.height()))
            .arg(kLargestPicture);
    return {};
}

} // namespace

double pictureScale(const QWidget& view) {
    const double scale = view.property(kScaleProperty).toDouble();
    return scale > 0 ? scale : view.devicePixelRatioF();
}

void setPictureScale(QWidget& view, double scale) { view.setProperty(kScaleProperty, scale); }

bool paintToFile(const QString& path, const PaintedPicture& picture,
                 const std::function<void(QPainter& painter, bool vector)>& paint) {
    constexpr int kLeastSide = 80;
    const QSize size = picture.size;
    if (size.width() < kLeastSide || size.height() < kLeastSide || size.width() > kLargestPicture ||
        size.height() > kLargestPicture)
        return false;
    const QString suffix = QFileInfo(path).suffix().toLower();
    if (suffix == QLatin1String("png")) {
        QImage image((QSizeF(size) * picture.scale).toSize(), QImage::Format_RGB32);
        if (image.isNull()) return false;
        image.setDevicePixelRatio(picture.scale);
        image.setText(QStringLiteral("Title"), picture.title);
        image.fill(Theme::current().plotBackground); // memory of a new image holds anything
        QPainter painter(&image);
        paint(painter, false);
        painter.end();
        return saveBytes(pngOf(image), path);
    }
    if (suffix == QLatin1String("svg")) {
        SvgFile svg(size, 96, picture.title, picture.description);
        QPainter painter(&svg.device());
        paint(painter, true);
        painter.end();
        return saveBytes(svg.document(), path);
    }
    if (suffix != QLatin1String("pdf") || !hasMemoryForPdf()) return false;
    QBuffer document;
    document.open(QIODevice::WriteOnly);
    {
        QPdfWriter pdf(&document);
        pdf.setTitle(picture.title);
        pdf.setCreator(QStringLiteral("KVScope"));
        pdf.setResolution(96);
        pdf.setPageMargins(QMarginsF(0, 0, 0, 0));
        pdf.setPageSize(QPageSize(QSizeF(size) * 72.0 / 96.0, QPageSize::Point, {}, QPageSize::ExactMatch));
        QPainter painter(&pdf);
        paint(painter, true);
    }
    return saveBytes(document.data(), path);
}

QString whyNoPicture(View& view, const QString& path, QSize size) {
    saveFailure().clear();
    if (view.exportImage(path, size)) return {};
    return saveFailure().isEmpty() ? say("there is no memory for a picture of this size") : saveFailure();
}

QString writePicture(View& view, const QString& path, const PictureStyle& style) {
    const QString suffix = QFileInfo(path).suffix().toLower();
    if (suffix != QLatin1String("png") && suffix != QLatin1String("svg") && suffix != QLatin1String("pdf"))
        return say("%1 has no suffix that says a format: use .png, .svg or .pdf.").arg(path);
    if (const QString problem = problemOf(style); !problem.isEmpty()) return problem;
    const StyleForNow now(view, style);
    const QString why = whyNoPicture(view, path, style.size);
    return why.isEmpty() ? QString() : say("%1 could not be written: %2.").arg(path, why);
}

QImage previewPicture(View& view, const PictureStyle& style, QSize box) {
    if (!problemOf(style).isEmpty()) return {};
    const QTemporaryDir folder;
    const QString path = folder.filePath(QStringLiteral("preview.png"));
    PictureStyle coarse = style;
    coarse.scale = 1; // a finer picture would look the same in the preview
    const StyleForNow now(view, coarse);
    if (!folder.isValid() || !view.exportImage(path, coarse.size)) return {};
    QImage image(path);
    if (image.isNull()) return {};
    if (image.width() > box.width() || image.height() > box.height())
        image = image.scaled(box, Qt::KeepAspectRatio, Qt::SmoothTransformation);
    return image;
}

} // namespace kvscope::ui
