// A small search chose the categorical colours. For normal, deuteranope and protanope sight, any two of a group differ
// by at least 14 (components), 21 (origins, the marks of misses and of found text) or 30 (resources) CIE76 units;
// tests/ui/theme_test.cpp checks this.
#include "ui/look/theme.h"

#include "resources/resources.h"
#include "ui/look/colour_maps.h"
#include "ui/look/theme_style.h"

#include <QApplication>
#include <QCoreApplication>
#include <QDir>
#include <QFontDatabase>
#include <QFontInfo>
#include <QPalette>
#include <QStyleFactory>
#include <QVariant>
#include <QWidget>

namespace kvscope::ui {

namespace {

Theme makeLight() {
    Theme t;
    t.id = QStringLiteral("light");
    t.window = 0xf3f4f6;
    t.base = 0xffffff;
    t.raised = 0xfafbfc;
    t.border = 0xd5d9df;
    t.text = 0x1b1f26;
    t.mutedText = 0x5a6270;
    t.accent = 0x1667c1;
    t.danger = 0xb3201f;
    t.ok = 0x1a7a4c;
    t.warning = 0x8a5a00;
    t.plotBackground = 0xffffff;
    t.plotGrid = 0xe8ebef;
    t.plotAxis = 0x8a929e;
    t.undefinedCell = 0xdfe2e7;
    t.origin = {0x5a6372, 0x5da1e2, 0xe08a14, 0x39a786, 0x773fa6};
    t.component = {0x1461af, 0x8ec1e9, 0x0e7a6b, 0x3eb694, 0xace4ca, 0xd9480f, 0x8d4a8d,
                   0xbf84b9, 0x4b94d7, 0x153863, 0x8a6d3b, 0xc9a24a, 0xefd9a0, 0xb5bbc6};
    t.resource = {0x1c85de, 0xc47b0c, 0x7d077e, 0x4c353e, 0x2a9d78};
    t.hit = 0xb9c6d4;
    t.miss = 0xad0032;
    t.runA = 0x1f6fd1;
    t.runB = 0xc2570c;
    t.cursor = 0x111418;
    t.found = 0x8811ff;
    return t;
}

Theme makeDark() {
    Theme t;
    t.id = QStringLiteral("dark");
    t.window = 0x1e2126;
    t.base = 0x16181c;
    t.raised = 0x272b31;
    t.border = 0x3a4049;
    t.text = 0xe4e7eb;
    t.mutedText = 0xa0a8b4;
    t.accent = 0x5aa2f5;
    t.danger = 0xff7b72;
    t.ok = 0x58c48c;
    t.warning = 0xe3b341;
    t.plotBackground = 0x16181c;
    t.plotGrid = 0x272b31;
    t.plotAxis = 0x767f8c;
    t.undefinedCell = 0x30343b;
    t.origin = {0x8696ac, 0x2773a5, 0xf2b04b, 0x47c099, 0xbf82ed};
    t.component = {0x4890db, 0xacd7fc, 0x289e89, 0x52cdab, 0xbaf0da, 0xfc7933, 0xb668ad,
                   0xd6a2cd, 0x77b4ef, 0x235ca0, 0xa58548, 0xddb85f, 0xf3e2b0, 0x606c7b};
    t.resource = {0x5288ff, 0xffc653, 0xa9619c, 0xdfd8f7, 0x369f5e};
    t.hit = 0x46525f;
    t.miss = 0xfd5971;
    t.runA = 0x5aa2f5;
    t.runB = 0xf0974a;
    t.cursor = 0xffffff;
    t.found = 0xfff53d;
    return t;
}

constexpr char kThemeProperty[] = "kvscopeTheme"; // of the application: the id of the theme that it has

const Theme* applied = nullptr;
const ColourMap *chosenSequential = nullptr, *chosenDiverging = nullptr;

/// Loads bundled fonts if the system has no font family. Without any family Qt would draw an empty box for every
/// character and report no error.
void ensureFont() {
    if (!QFontDatabase::families().isEmpty()) return;
    for (const char* name : {"fonts/DejaVuSans.ttf", "fonts/DejaVuSans-Bold.ttf", "fonts/DejaVuSansMono.ttf"}) {
        if (const auto bytes = resources::find(name)) {
            QFontDatabase::addApplicationFontFromData(
                QByteArray(reinterpret_cast<const char*>(bytes->data()), qsizetype(bytes->size())));
        }
    }
    const QDir folder(QCoreApplication::applicationDirPath() + QStringLiteral("/../share/kvscope/fonts"));
    for (const QString& file : folder.entryList({QStringLiteral("*.ttf"), QStringLiteral("*.otf")}, QDir::Files))
        QFontDatabase::addApplicationFont(folder.filePath(file));
}

} // namespace

const Theme& Theme::light() {
    static const Theme theme = makeLight();
    return theme;
}

const Theme& Theme::dark() {
    static const Theme theme = makeDark();
    return theme;
}

const Theme& Theme::byId(const QString& id) { return id == dark().id ? dark() : light(); }

const Theme& Theme::current() { return applied ? *applied : light(); }

void Theme::apply(QApplication& app, const Theme& theme) {
    applied = &byId(theme.id);
    const Theme& t = *applied;
    ensureFont();
    // Each of the four calls below restyles every widget of the program, so what is as it should be is left alone.
    const QVariant before = app.property(kThemeProperty);
    if (!before.isValid()) app.setStyle(QStyleFactory::create(QStringLiteral("Fusion")));
    QFont font = QFontDatabase::systemFont(QFontDatabase::GeneralFont);
    if (font.pointSizeF() < 9.5) font.setPointSizeF(9.5);
    if (app.font() != font) app.setFont(font);
    if (before != t.id) app.setPalette(paletteOf(t));
    if (const QString sheet = styleSheetOf(t); app.styleSheet() != sheet) app.setStyleSheet(sheet);
    app.setProperty(kThemeProperty, t.id);
}

ThemeOfOneWidget::ThemeOfOneWidget(QWidget& widget, const Theme& theme)
    : widget_(widget), before_(Theme::current()), sheet_(widget.styleSheet()), palette_(widget.palette()),
      hadPalette_(widget.testAttribute(Qt::WA_SetPalette)) {
    applied = &Theme::byId(theme.id);
    widget_.setPalette(paletteOf(*applied));
    widget_.setStyleSheet(styleSheetOf(*applied) + sheet_);
}

ThemeOfOneWidget::~ThemeOfOneWidget() {
    applied = &before_;
    widget_.setStyleSheet(sheet_);
    widget_.setPalette(hadPalette_ ? palette_ : QPalette());
}

QRgb Theme::sequential(double t) { return sequentialMap().at(t); }
QRgb Theme::diverging(double t) { return divergingMap().at(t); }
const ColourMap& Theme::sequentialMap() { return chosenSequential ? *chosenSequential : sequentialMaps().front(); }
const ColourMap& Theme::divergingMap() { return chosenDiverging ? *chosenDiverging : divergingMaps().front(); }

void Theme::chooseMaps(const QString& sequential, const QString& diverging) {
    chosenSequential = &colourMap(sequentialMaps(), sequential);
    chosenDiverging = &colourMap(divergingMaps(), diverging);
}

} // namespace kvscope::ui
