/* A TFLite delegate for tests that declares the public ABI itself. Its option `mode` says what it does:
   none      takes no node
   take      takes every node of the operator in the option `operator` and subtracts its inputs
   create    refuses to be made
   prepare   fails to prepare the model
   invoke    takes the nodes, and fails when they run and the file in the option `unplugged` exists
   crash     kills its process when it prepares the model */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { int size; int data[]; } IntArray;
typedef struct {
  int type; float *data; IntArray *dims; float scale; int32_t zero_point; int allocation_type;
  size_t bytes; const void *allocation; const char *name; void *delegate; int buffer_handle;
  _Bool stale, variable; int quantization_type; void *quantization; void *sparsity;
  const IntArray *dims_signature;
} Tensor;
typedef struct { IntArray *inputs, *outputs; } Node;
struct Context;
typedef struct {
  void *(*init)(struct Context *, const char *, size_t);
  void (*free)(struct Context *, void *);
  int (*prepare)(struct Context *, Node *);
  int (*invoke)(struct Context *, Node *);
  void *profiling_string;
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *later[8];
} Registration;
typedef struct Delegate {
  void *data;
  int (*prepare)(struct Context *, struct Delegate *);
  void *copy_from, *copy_to, *free_handle;
  int64_t flags;
  void *builder;
} Delegate;
typedef struct Context {
  size_t tensors_size;
  int (*plan)(struct Context *, IntArray **);
  Tensor *tensors;
  void *impl, *resize, *report, *add;
  int (*node)(struct Context *, int, Node **, Registration **);
  int (*replace)(struct Context *, Registration, const IntArray *, Delegate *);
} Context;

static char mode[32], unplugged[512];
static int wanted = 41; /* SUB */

static int gone(void) { return !strcmp(mode, "invoke") && access(unplugged, F_OK) == 0; }

static int prepare_node(Context *context, Node *node) { return 0; }

static int run_node(Context *context, Node *node) {
  if (gone()) return 1;
  Tensor *a = &context->tensors[node->inputs->data[0]], *b = &context->tensors[node->inputs->data[1]];
  Tensor *c = &context->tensors[node->outputs->data[0]];
  for (size_t at = 0; at < c->bytes / sizeof(float); at++) c->data[at] = a->data[at] - b->data[at];
  return 0;
}

static int prepare(Context *context, Delegate *delegate) {
  if (!strcmp(mode, "prepare")) return 1;
  if (!strcmp(mode, "crash")) abort();
  if (!strcmp(mode, "none")) return 0;
  IntArray *plan;
  if (context->plan(context, &plan)) return 1;
  IntArray *taken = malloc(sizeof(int) * (plan->size + 1));
  taken->size = 0;
  for (int at = 0; at < plan->size; at++) {
    Node *node;
    Registration *found;
    if (context->node(context, plan->data[at], &node, &found)) return 1;
    if (found->builtin_code == wanted) taken->data[taken->size++] = plan->data[at];
  }
  Registration mine = {0};
  mine.prepare = prepare_node;
  mine.invoke = run_node;
  mine.builtin_code = 51; /* DELEGATE */
  mine.custom_name = "TestDelegate";
  mine.version = 1;
  int status = context->replace(context, mine, taken, delegate);
  free(taken);
  return status;
}

Delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count,
                                        void (*report)(const char *)) {
  strcpy(mode, "none");
  for (size_t at = 0; at < count; at++) {
    if (!strcmp(keys[at], "mode")) snprintf(mode, sizeof mode, "%s", values[at]);
    else if (!strcmp(keys[at], "unplugged")) snprintf(unplugged, sizeof unplugged, "%s", values[at]);
    else { report("unknown option"); return NULL; }
  }
  if (!strcmp(mode, "create") || gone()) { report("no device"); return NULL; }
  Delegate *made = calloc(1, sizeof *made);
  made->prepare = prepare;
  return made;
}

void tflite_plugin_destroy_delegate(Delegate *delegate) { free(delegate); }
