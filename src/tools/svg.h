/* svg.h: writes a picture as SVG, shape by shape. It decides no layout. Text is escaped here, once. */
#ifndef MCPG_TOOLS_SVG_H
#define MCPG_TOOLS_SVG_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    FILE *out;
} svg_t;
typedef enum { SVG_START, SVG_MIDDLE, SVG_END } svg_anchor_t;

/* style: CSS of the classes that shapes name. */
void svg_begin(svg_t *svg, FILE *out, double width, double height, const char *style);
/* title: shown when pointed at; NULL: none. */
void svg_rect(svg_t *svg, double x, double y, double width, double height, const char *class_name, const char *title);
void svg_line(svg_t *svg, double x1, double y1, double x2, double y2, const char *class_name, const char *title);
void svg_circle(svg_t *svg, double x, double y, double radius, const char *class_name, const char *title);
void svg_path(svg_t *svg, const char *path, const char *class_name);
void svg_text(svg_t *svg, double x, double y, svg_anchor_t anchor, const char *class_name, const char *text);
/* False: something could not be written. */
bool svg_end(svg_t *svg);

#endif
