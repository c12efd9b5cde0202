/* svg.c: see svg.h. */
#include "tools/svg.h"

static void escaped(FILE *out, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '&')
            fputs("&amp;", out);
        else if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '"')
            fputs("&quot;", out);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, out);
    }
}

static void end_shape(svg_t *svg, const char *element, const char *title) {
    if (title == NULL) {
        fputs("/>\n", svg->out);
        return;
    }
    fputs("><title>", svg->out);
    escaped(svg->out, title);
    fprintf(svg->out, "</title></%s>\n", element);
}

void svg_begin(svg_t *svg, FILE *out, double width, double height, const char *style) {
    svg->out = out;
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n<style>\n%s</style>\n",
            width, height, width, height, style);
}

void svg_rect(svg_t *svg, double x, double y, double width, double height, const char *class_name, const char *title) {
    fprintf(svg->out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" class=\"%s\"", x, y, width, height,
            class_name);
    end_shape(svg, "rect", title);
}

void svg_line(svg_t *svg, double x1, double y1, double x2, double y2, const char *class_name, const char *title) {
    fprintf(svg->out, "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" class=\"%s\"", x1, y1, x2, y2, class_name);
    end_shape(svg, "line", title);
}

void svg_circle(svg_t *svg, double x, double y, double radius, const char *class_name, const char *title) {
    fprintf(svg->out, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"%.2f\" class=\"%s\"", x, y, radius, class_name);
    end_shape(svg, "circle", title);
}

void svg_path(svg_t *svg, const char *path, const char *class_name) {
    fprintf(svg->out, "<path d=\"%s\" class=\"%s\"/>\n", path, class_name);
}

void svg_text(svg_t *svg, double x, double y, svg_anchor_t anchor, const char *class_name, const char *text) {
    static const char *const anchors[] = {"start", "middle", "end"};
    fprintf(svg->out, "<text x=\"%.2f\" y=\"%.2f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchors[anchor],
            class_name);
    escaped(svg->out, text);
    fputs("</text>\n", svg->out);
}

bool svg_end(svg_t *svg) {
    fputs("</svg>\n", svg->out);
    return ferror(svg->out) == 0;
}
