// kvscope figure: a figure of the papers, drawn from the user's own traces.
#include "app/kvscope/commands.h"

#include "app/kvscope/offscreen.h"
#include "app/terminal/output.h"
#include "base/error.h"
#include "base/whole_file.h"
#include "ui/figures/figure.h"
#include "ui/figures/figure_drawing.h"

#include <QApplication>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <ostream>

namespace kvscope::app {
namespace {

int list(const FigureOptions& options) {
    const bool judged = !options.words.empty();
    const ui::FigureSources sources = judged ? ui::readFigureSources(options.words) : ui::FigureSources{};
    auto all = nlohmann::ordered_json::array();
    for (const ui::FigureEntry& entry : ui::figures()) {
        const std::string why = judged ? entry.refusal(sources) : std::string();
        if (options.json) {
            nlohmann::ordered_json one{
                {"name", entry.id}, {"title", entry.title}, {"redraws", entry.redraws}, {"needs", entry.needs}};
            if (judged) {
                one["can_draw"] = why.empty();
                one["why_not"] = why;
            }
            all.push_back(std::move(one));
            continue;
        }
        const std::string redraws = *entry.redraws == 0 ? "" : fmt::format(" ({})", entry.redraws);
        printOut("{:<20} {}{}\n", entry.id, entry.title, redraws);
        if (!judged || !why.empty())
            printOut("{:<20}   {}{}\n", "", judged ? "not from these: " + why + "; " : "", entry.needs);
    }
    if (options.json) printOut("{}\n", all.dump(2));
    return 0;
}

} // namespace

int runFigure(int& argc, char** argv, const FigureOptions& options) {
    if (options.list) return list(options);
    if (options.words.size() < 2 || options.output.empty())
        throw Error(ErrorKind::BadInput, "figure needs a name, files and -o OUT",
                    "write kvscope figure NAME TRACE... -o OUT.svg; kvscope figure --list names the figures");
    const ui::FigureEntry& entry = ui::findFigure(options.words.front());
    const QSizeF size = ui::parseFigureSize(options.size);
    const ui::FigureData data =
        ui::makeFigure(entry, ui::readFigureSources({options.words.begin() + 1, options.words.end()}));
    useOffscreenPlatform();
    qputenv("QT_SCALE_FACTOR", "1");
    nameApplication();
    const QApplication application(argc, argv);
    ui::writeFigure(data, absolute(options.output), size);
    if (!options.csv.empty()) {
        const std::string why = writeWholeFile(options.csv, [&](std::ostream& file) { file << ui::figureCsv(data); });
        if (!why.empty())
            throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", options.csv, why),
                        "choose another name, in a folder that exists, is writable and has space");
    }
    printOut("{}\n", data.note);
    return 0;
}

} // namespace kvscope::app
