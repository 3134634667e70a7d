// Writes a view as a picture to a file. The picture has its own size, scale and theme, which do not depend on the
// window.
#pragma once

#include <QImage>
#include <QSize>
#include <QString>

#include <functional>

class QPainter;
class QWidget;

namespace kvscope::ui {

class View;

struct PictureStyle {
    QSize size{1600, 1000}; // logical pixels; a PDF's page has 96 of them per inch
    double scale = 1;       // pixels of a PNG per logical pixel
    QString theme;          // "light" or "dark"; empty: the theme of the program
};

inline constexpr int kSmallestPicture = 200, kLargestPicture = 16'384; // pixels of a side, scale included
inline constexpr double kLargestScale = 8;

/// How many pixels of a PNG exportImage of this view gives per logical pixel: as many as on the screen, unless a scale
/// was set.
double pictureScale(const QWidget& view);
void setPictureScale(QWidget& view, double scale); // `scale` 0: as on the screen

/// What a picture is besides what is painted: `scale`: pixels of a PNG per logical pixel; title and description stand
/// in the file.
struct PaintedPicture {
    QSize size; // logical pixels
    double scale = 1;
    QString title, description;
};
/// Writes what `paint` draws into a file; the suffix of `path` decides about the format: png, svg or pdf. `paint` fills
/// the whole size; `vector`: the file keeps shapes and text. @return false if the picture could not be written
bool paintToFile(const QString& path, const PaintedPicture& picture,
                 const std::function<void(QPainter& painter, bool vector)>& paint);

/// Writes the picture into the file by exportImage of the view. @return empty, or why the file could not be written
QString whyNoPicture(View& view, const QString& path, QSize size);

/// Writes the view as a picture. The suffix of `path` decides about the format: png, svg or pdf. @return what went
/// wrong as a sentence; empty on success
QString writePicture(View& view, const QString& path, const PictureStyle& style);

/// The picture, scaled down to fit into `box` device pixels; null if it cannot be drawn.
QImage previewPicture(View& view, const PictureStyle& style, QSize box);

} // namespace kvscope::ui
