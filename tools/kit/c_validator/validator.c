/* A minimal LINK/1 validator (docs/reference/LINK1.md): asks for a hand, checks the verdict, decides once, answers always.
 *
 * The one rule that everything here serves: port_open_gate() is called only for the own open request, on the
 * first copy of a verdict that fits it in every member, in time, signed by the pinned key, and with a
 * verdict_seq above every one acted on before; and only after all that has been made durable.
 *
 * One file, C11, no heap, no recursion deeper than JSON's 16 levels. `validator --sizes` prints what it holds
 * in static memory. Everything above "PORT" is portable and needs the eight port_… functions declared below;
 * what stands under it is one port, for POSIX. Mail (channel 1) is not carried.
 *
 * Messages are never queued as bytes: what is owed is noted, and each message is composed when the channel is
 * free. Ed25519 is deterministic, so composing a request or a decision again gives the same bytes again.
 */
#define _DEFAULT_SOURCE
#include <sodium.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- sizes and times of the contract */

enum {
    HEADER = 8,
    CRC = 4,
    SLICE = 1024,
    FRAGMENTS = 4,
    MAX_RAW = HEADER + SLICE + CRC,
    MAX_ENCODED = MAX_RAW + MAX_RAW / 254 + 1,
    MAX_MESSAGE = FRAGMENTS * SLICE,
    TAG = 8,
    NONCE = 32,
    REQUEST_NONCE = 16,
    ID = 16,             /* txn_id, kid and verdict_ref in bytes: 32 hex characters */
    NAME = 64,           /* longest device_id, gate_id, dbd_id */
    REFS = 32,           /* most verdict_refs in one resolve; as many answers are remembered */
    DEPTH = 16,
    PREFIX = 32,         /* room before a signed object for its signature prefix */
    OUT = 1280,          /* the longest message sent here: unknown with 32 refs */
    ERRORS = 4,
    ACKS = 4,
    RST_EVERY_MS = 500,
    PING_AFTER_MS = 500,
    SILENCE_MS = 2000,
    HANDSHAKE_MS = 5000,
    REFUSAL_MS = 1000,
    LATE_AFTER_TTL_MS = 2000,
};
static const uint16_t RETRANSMIT_MS[] = {200, 400, 800, 1600, 2000, 2000};
enum { TRANSMISSIONS = sizeof RETRANSMIT_MS / sizeof *RETRANSMIT_MS };

enum { DATA = 1, ACK = 2, RST = 4, RSTACK = 5, PING = 6, PONG = 7, HINT = 8 };

/* ---- what this end is told, and what it must not forget */

struct settings {
    uint8_t seed_and_key[64]; /* libsodium's secret key: seed ‖ public key */
    uint8_t device_key[32];   /* PINNED: the device's verdict key */
    char dbd_id[NAME + 1], gate_id[NAME + 1];
    bool passage_sensor;
};

enum reason { OK, NOT_RECOGNISED, STALE, FAULT };
static const char *const REASONS[] = {"ok", "not_recognised", "stale", "fault"};
enum cause { TURNED, TIMED_OUT, REVERSED };
static const char *const CAUSES[] = {"giro", "timeout", "reverso"};

/* One answered verdict: all that decision and passage are composed of. */
struct answer {
    uint8_t ref[ID], txn[ID], nonce[NONCE], nonce_len;
    uint8_t reason, actuated, has_passage, passed, cause;
    uint64_t decision_seq, decided_at_ms, event_seq, at_ms;
};

/* Survives restarts and power loss; saved whole before anything is sent or moved. */
struct memory {
    uint8_t device_kid[ID], own_kid[ID];
    uint64_t decision_seq, event_seq, highest_verdict_seq;
    struct answer answers[REFS]; /* that of decision_seq s in place (s − 1) % REFS */
    uint8_t forgot; /* verdicts were answered that decision_seq does not count: nothing is `unknown` */
};

enum news { LINK_UP, LINK_DOWN, STATUS, GUIDE, REQUEST_SENT, REQUEST_ENDED, VERDICT, PASSAGE, REFUSED };

/* ---- the port: what a firmware provides */

static uint64_t port_now_ms(void);  /* monotonic, 64 bits */
static uint64_t port_wall_ms(void); /* epoch; only written into what is signed, never compared */
static size_t port_write(const uint8_t *data, size_t size); /* never waits; takes what it can */
static size_t port_unsent(void); /* bytes taken and not yet left; 0 where it cannot tell */
static bool port_save(const struct memory *memory); /* durable on return; false: the gate stays closed */
static void port_open_gate(void);
static void port_told(enum news what, const char *word, const struct answer *answer);
/* and random bytes, through libsodium's randombytes_buf */

/* ---- the one state of this end */

static struct settings me;
static struct memory memory;
static uint8_t own_kid[ID], device_kid[ID];

static struct { /* what comes in */
    uint8_t frame[MAX_ENCODED];
    size_t held;
    bool overrun;
    uint8_t message[PREFIX + MAX_MESSAGE];
    size_t last_size;
    uint8_t have, count; /* fragments there, as bits; fragments of the message */
    uint16_t expected, delivered;
} in;

static struct { /* the frame on its way into the port, and the message that it is a part of */
    uint8_t frame[1 + MAX_ENCODED + 1];
    size_t len, done;
    bool zero_first, ends_message;
    uint8_t message[PREFIX + OUT];
    size_t size; /* 0: none in flight */
    uint16_t mid, next_mid;
    uint8_t next, transmissions;
    bool leaving, timed, overflow;
    uint64_t deadline;
} out;

static struct {
    enum { CLOSED, RESETTING, UP } state;
    uint8_t own_tag[TAG], peer_tag[TAG];
    bool peer_known, rst_due, rstack_due, ping_due;
    uint8_t pongs_due, acks;
    uint16_t ack[ACKS];
    uint64_t next_rst, last_received, last_sent;
} cable;

static struct {
    enum { NONE, GREETED, PROVING, PROVEN, REJECTED } state;
    uint64_t deadline;
    uint8_t own_nonce[NONCE], peer_nonce[NONCE];
    char peer_id[NAME + 1];
} shake;

static struct { /* what is owed to the device */
    bool hello, prove, ready, request, cancel;
    uint8_t cancelled[ID];
    uint32_t decisions, passages; /* one bit for each place in memory.answers */
    uint8_t unknown[REFS][ID], unknowns;
    uint8_t errors;
    struct { const char *code, *about; } error[ERRORS];
} due;

static struct { /* the one request that may still be answered */
    bool open, sent;
    uint8_t txn[ID], nonce[REQUEST_NONCE];
    uint64_t issued_at_ms, ttl_ms, sent_ms;
} asked;

_Static_assert(REFS == 32, "due.decisions and due.passages have a bit for each");
_Static_assert(sizeof in + sizeof out + sizeof cable + sizeof shake + sizeof due + sizeof asked + sizeof memory +
                   sizeof me < 16 * 1024, "half of a small microcontroller at most");

/* ---- CRC-32/ISO-HDLC and COBS */

static uint32_t crc_byte(uint32_t crc, uint8_t byte)
{
    static const uint32_t T[16] = {0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4,
                                   0x4DB26158, 0x5005713C, 0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
                                   0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
    crc ^= byte;
    crc = crc >> 4 ^ T[crc & 15];
    return crc >> 4 ^ T[crc & 15];
}

static uint32_t crc_of(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xFFFFFFFF;
    while (size--)
        crc = crc_byte(crc, *data++);
    return ~crc;
}

/* Decodes in place; 0 for what no encoder makes. No 0x00 is among the bytes. */
static size_t cobs_decode(uint8_t *bytes, size_t size)
{
    size_t from = 0, to = 0;
    while (from < size) {
        uint8_t code = bytes[from++];
        if ((size_t)code - 1 > size - from)
            return 0;
        memmove(bytes + to, bytes + from, (size_t)code - 1);
        from += (size_t)code - 1;
        to += (size_t)code - 1;
        if (code != 0xFF && from < size)
            bytes[to++] = 0;
    }
    return to;
}

struct cobs {
    uint8_t *to;
    size_t len, code_at;
    uint8_t code;
};

static void cobs_byte(struct cobs *c, uint8_t byte)
{
    if (c->code == 0xFF) { /* a full run is closed only when more follows, so that none is left empty */
        c->to[c->code_at] = 0xFF;
        c->code_at = c->len++;
        c->code = 1;
    }
    if (byte != 0) {
        c->to[c->len++] = byte;
        c->code++;
    } else {
        c->to[c->code_at] = c->code;
        c->code_at = c->len++;
        c->code = 1;
    }
}

/* ---- strict JSON, by slices of the bytes received */

struct json {
    uint8_t *at, *end;
};

static uint8_t *skip_space(uint8_t *p, const uint8_t *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r'))
        p++;
    return p;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
        return (c | 0x20) - 'a' + 10;
    return -1;
}

/* The four digits of \uXXXX at p; −1 when they are none. */
static int32_t unit_at(const uint8_t *p, const uint8_t *end)
{
    if (end - p < 4)
        return -1;
    int32_t unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

static int32_t escape_at(uint8_t **at, const uint8_t *end)
{
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    uint8_t *p = *at;
    if (p >= end)
        return -1;
    if (*p != 'u') {
        const char *found = *p != 0 ? strchr(FROM, *p) : NULL;
        *at = p + 1;
        return found != NULL ? TO[found - FROM] : -1;
    }
    int32_t high = unit_at(p + 1, end);
    *at = p + 5;
    if (high < 0xD800 || high > 0xDFFF)
        return high;
    if (high > 0xDBFF || end - p < 11 || p[5] != '\\' || p[6] != 'u')
        return -1; /* a lone surrogate */
    int32_t low = unit_at(p + 7, end);
    *at = p + 11;
    return low >= 0xDC00 && low <= 0xDFFF ? 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00) : -1;
}

static int32_t utf8_at(uint8_t **at, const uint8_t *end)
{
    uint8_t *p = *at, first = *p++;
    int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC2 ? 1 : -1;
    static const int32_t LEAST[] = {0, 0x80, 0x800, 0x10000};
    if (first < 0x80) {
        *at = p;
        return first;
    }
    if (more < 0 || first > 0xF4 || end - p < more)
        return -1;
    int32_t point = first & (0x3F >> more);
    for (int i = 0; i < more; i++, p++) {
        if ((*p & 0xC0) != 0x80)
            return -1;
        point = point << 6 | (*p & 0x3F);
    }
    *at = p;
    return point < LEAST[more] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF) ? -1 : point;
}

enum { STRING_ENDS = -2 };

/* The next code point inside a string, STRING_ENDS behind its closing quote, −1 for what is none. */
static int32_t character(uint8_t **at, const uint8_t *end)
{
    if (*at >= end || **at < 0x20)
        return -1;
    if (**at == '"') {
        ++*at;
        return STRING_ENDS;
    }
    if (**at == '\\') {
        ++*at;
        return escape_at(at, end);
    }
    return utf8_at(at, end);
}

static uint8_t *skip_string(uint8_t *p, const uint8_t *end)
{
    if (p >= end || *p++ != '"')
        return NULL;
    for (;;) {
        int32_t c = character(&p, end);
        if (c == STRING_ENDS)
            return p;
        if (c < 0)
            return NULL;
    }
}

static bool same_string(uint8_t *a, uint8_t *b, const uint8_t *end)
{
    for (a++, b++;;) {
        int32_t x = character(&a, end), y = character(&b, end);
        if (x != y || x == -1)
            return false;
        if (x == STRING_ENDS)
            return true;
    }
}

static uint8_t *skip_number(uint8_t *p, const uint8_t *end)
{
    bool negative = p < end && *p == '-';
    uint8_t *first = p += negative;
    uint64_t value = 0;
    while (p < end && *p >= '0' && *p <= '9' && p - first < 17)
        value = value * 10 + (uint64_t)(*p++ - '0');
    bool canonical = p > first && (*first != '0' || (p - first == 1 && !negative));
    bool whole = p == end || (*p != '.' && *p != 'e' && *p != 'E' && !(*p >= '0' && *p <= '9'));
    return canonical && whole && value <= 9007199254740991u ? p : NULL;
}

static uint8_t *skip_value(uint8_t *p, const uint8_t *end, int depth, bool check);

/* Is the key at `key` among those of the object between its brace at `from` and `key`? */
static bool key_repeated(uint8_t *from, uint8_t *key, const uint8_t *end)
{
    for (uint8_t *p = skip_space(from + 1, end); p < key;) {
        if (same_string(p, key, end))
            return true;
        p = skip_space(skip_string(p, end), end);
        p = skip_space(skip_value(skip_space(p + 1, end), end, DEPTH, false), end);
        p = skip_space(p + 1, end);
    }
    return false;
}

static uint8_t *skip_container(uint8_t *p, const uint8_t *end, int depth, bool check)
{
    uint8_t *from = p;
    bool object = *p == '{';
    uint8_t close = object ? '}' : ']';
    if (depth == 0)
        return NULL;
    p = skip_space(p + 1, end);
    if (p < end && *p == close)
        return p + 1;
    for (;;) {
        if (object) {
            uint8_t *key = p;
            p = skip_string(p, end);
            if (p == NULL || (check && key_repeated(from, key, end)))
                return NULL;
            p = skip_space(p, end);
            if (p >= end || *p != ':')
                return NULL;
            p = skip_space(p + 1, end);
        }
        p = skip_value(p, end, depth - 1, check);
        if (p == NULL)
            return NULL;
        p = skip_space(p, end);
        if (p >= end || (*p != ',' && *p != close))
            return NULL;
        if (*p == close)
            return p + 1;
        p = skip_space(p + 1, end);
    }
}

/* Behind the value at p, or NULL. With `check` members of one object are told apart. */
static uint8_t *skip_value(uint8_t *p, const uint8_t *end, int depth, bool check)
{
    static const char *const LITERALS[] = {"true", "false", "null"};
    if (p >= end)
        return NULL;
    if (*p == '"')
        return skip_string(p, end);
    if (*p == '{' || *p == '[')
        return skip_container(p, end, depth, check);
    for (size_t i = 0; i < 3; i++) {
        size_t size = strlen(LITERALS[i]);
        if ((size_t)(end - p) >= size && memcmp(p, LITERALS[i], size) == 0)
            return p + size;
    }
    return skip_number(p, end);
}

/* One strict object and nothing else: what everything below relies on. */
static bool is_message(struct json text)
{
    uint8_t *p = skip_space(text.at, text.end);
    if (p >= text.end || *p != '{')
        return false;
    p = skip_value(p, text.end, DEPTH, true);
    return p != NULL && skip_space(p, text.end) == text.end;
}

static bool is_word(uint8_t *p, const uint8_t *end, const char *word)
{
    p++;
    for (;; word++) {
        int32_t c = character(&p, end);
        if (c == STRING_ENDS)
            return *word == 0;
        if (*word == 0 || c != (int32_t)(uint8_t)*word)
            return false;
    }
}

/* The member `name` of an object, and how many members there are; at is NULL when it is not there. */
static struct json member_of(struct json object, const char *name, int *members)
{
    struct json found = {NULL, NULL};
    int count = 0;
    uint8_t *p = object.at != NULL ? skip_space(object.at, object.end) : NULL;
    if (p != NULL && p < object.end && *p == '{') {
        p = skip_space(p + 1, object.end);
        while (*p != '}') {
            uint8_t *key = p;
            p = skip_space(skip_string(p, object.end), object.end);
            uint8_t *value = skip_space(p + 1, object.end);
            p = skip_value(value, object.end, DEPTH, false);
            count++;
            if (is_word(key, object.end, name))
                found = (struct json){value, p};
            p = skip_space(p, object.end);
            p = *p == ',' ? skip_space(p + 1, object.end) : p;
        }
    }
    if (members != NULL)
        *members = count;
    return found;
}

static struct json get(struct json object, const char *name)
{
    return member_of(object, name, NULL);
}

static bool is_text(struct json value, const char *word)
{
    return value.at != NULL && *value.at == '"' && is_word(value.at, value.end, word);
}

static const char HEX[] = "0123456789abcdef";
#define WORDS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
static const char NAMES[] = WORDS ".:-";
static const char MECHS[] = WORDS ".+:-";
static const char ONBOARDS[] = WORDS ".:+/=-";

/* A string of `low` to `high` characters of `set`, copied with its closing 0; `to` holds high + 1. */
static bool text(struct json value, const char *set, size_t low, size_t high, char *to)
{
    if (value.at == NULL || *value.at != '"')
        return false;
    uint8_t *p = value.at + 1;
    for (size_t size = 0;; size++) {
        int32_t c = character(&p, value.end);
        if (c == STRING_ENDS) {
            to[size] = 0;
            return size >= low;
        }
        if (size == high || c <= 0 || c > 0x7F || strchr(set, (char)c) == NULL)
            return false;
        to[size] = (char)c;
    }
}

static bool hex_id(struct json value, uint8_t id[ID])
{
    char digits[2 * ID + 1];
    return text(value, HEX, 2 * ID, 2 * ID, digits) &&
           sodium_hex2bin(id, ID, digits, 2 * ID, NULL, NULL, NULL) == 0;
}

/* Strict base64 of `low` to `high` (at most 64) bytes. */
static bool base64(struct json value, size_t low, size_t high, uint8_t *to, size_t *size)
{
    static const char SET[] = WORDS "+/=";
    char digits[sodium_base64_ENCODED_LEN(64, sodium_base64_VARIANT_ORIGINAL)];
    return text(value, SET, 0, sizeof digits - 1, digits) &&
           sodium_base642bin(to, high, digits, strlen(digits), NULL, size, NULL, sodium_base64_VARIANT_ORIGINAL) == 0 &&
           *size >= low;
}

static bool integer(struct json value, int64_t low, int64_t high, int64_t *to)
{
    if (value.at == NULL)
        return false;
    uint8_t *p = value.at;
    bool negative = *p == '-';
    p += negative;
    if (p >= value.end || *p < '0' || *p > '9')
        return false;
    int64_t number = 0;
    for (; p < value.end; p++)
        number = number * 10 + (*p - '0');
    *to = negative ? -number : number;
    return *to >= low && *to <= high;
}

static bool boolean(struct json value, bool *to)
{
    *to = value.at != NULL && *value.at == 't';
    return value.at != NULL && (*value.at == 't' || *value.at == 'f');
}

/* ---- what a message must hold, as tables */

enum shape { INTEGER, HEXES, NAMED, MECH, ONBOARD, BYTES };
struct rule {
    const char *name;
    enum shape shape;
    int64_t low, high; /* an integer's range; otherwise characters or bytes */
};
#define MOST INT64_C(9007199254740991)
static const struct rule VERDICT_RULES[] = {
    {"v", INTEGER, 1, 1},
    {"txn_id", HEXES, 32, 32},
    {"gate_id", NAMED, 1, NAME},
    {"dbd_id", NAMED, 1, NAME},
    {"nonce_b64", BYTES, 16, 32},
    {"issued_at_ms", INTEGER, 0, MOST},
    {"ttl_ms", INTEGER, 500, 60000},
    {"decided_at_ms", INTEGER, 0, MOST},
    {"device_id", NAMED, 1, NAME},
    {"verdict_seq", INTEGER, 1, MOST},
    {"prev_ref", HEXES, 32, 32},
    {"score_q", INTEGER, -10000, 10000},
    {"margin_q", INTEGER, 0, 20000},
    {"quality_q", INTEGER, 0, 100},
    {"attempts", INTEGER, 0, 1000},
    {"model_id", NAMED, 1, NAME},
    {"thr_id", NAMED, 1, NAME},
};
static const struct rule PAD_RULES[] = {{"mech", MECH, 1, 64}, {"score_q", INTEGER, 0, 10000}};
static const struct rule GALLERY_RULES[] = {
    {"stream", NAMED, 1, NAME}, {"epoch", INTEGER, 0, MOST}, {"seq", INTEGER, 0, MOST}, {"head16", HEXES, 16, 16}};

static bool fits(struct json object, const struct rule *rule, size_t rules)
{
    char letters[129];
    uint8_t bytes[NONCE];
    size_t size;
    int64_t number;
    for (; rules--; rule++) {
        struct json value = get(object, rule->name);
        size_t low = (size_t)rule->low, high = (size_t)rule->high;
        bool good = false;
        switch (rule->shape) {
        case INTEGER: good = integer(value, rule->low, rule->high, &number); break;
        case HEXES: good = text(value, HEX, low, high, letters); break;
        case NAMED: good = text(value, NAMES, low, high, letters); break;
        case MECH: good = text(value, MECHS, low, high, letters); break;
        case ONBOARD: good = text(value, ONBOARDS, low, high, letters); break;
        case BYTES: good = base64(value, low, high, bytes, &size); break;
        }
        if (!good)
            return false;
    }
    return true;
}
#define FITS(object, rules) fits(object, rules, sizeof(rules) / sizeof *(rules))

static const struct {
    const char *result, *decision;
    enum reason reason;
} RESULTS[] = {
    {"MATCH", "accept", OK},
    {"NO_MATCH", "reject", NOT_RECOGNISED},
    {"AMBIGUOUS", "reject", NOT_RECOGNISED},
    {"SPOOF", "reject", NOT_RECOGNISED},
    {"POOR_CAPTURE", "abstain", NOT_RECOGNISED},
    {"GALLERY_EXPIRED", "abstain", STALE},
    {"NOT_READY", "abstain", FAULT},
};
enum { RESULT_COUNT = sizeof RESULTS / sizeof *RESULTS, MATCH = 0 };

/* Which result an object of the verdict's form holds; −1 when it has another form. */
static int verdict_result(struct json verdict)
{
    struct json pad = get(verdict, "pad"), res = get(pad, "res"), hand = get(verdict, "hand");
    static const struct rule SUBJECT[] = {{"subject_ref", HEXES, 32, 32}};
    static const struct rule BOARD[] = {{"onboard_ref", ONBOARD, 1, 128}};
    int result = 0;
    while (result < RESULT_COUNT && !is_text(get(verdict, "result"), RESULTS[result].result))
        result++;
    if (result == RESULT_COUNT || !is_text(get(verdict, "decision"), RESULTS[result].decision) ||
        !FITS(verdict, VERDICT_RULES) || !FITS(pad, PAD_RULES) || !FITS(get(verdict, "gallery"), GALLERY_RULES) ||
        !(is_text(res, "pass") || is_text(res, "fail") || is_text(res, "unknown")))
        return -1;
    bool onboard = get(verdict, "onboard_ref").at != NULL;
    if (result != MATCH)
        return hand.at == NULL && !onboard && get(verdict, "subject_ref").at == NULL ? result : -1;
    return FITS(verdict, SUBJECT) && (is_text(hand, "L") || is_text(hand, "R")) && (!onboard || FITS(verdict, BOARD))
               ? result : -1;
}

/* ---- signatures over slices, without a copy: the prefix is laid before the object for a moment */

struct borrowed {
    uint8_t *start, saved[PREFIX];
    size_t size;
};

static struct borrowed lay_prefix(uint8_t *object, const char *prefix)
{
    struct borrowed b = {.size = strlen(prefix) + 1};
    b.start = object - b.size;
    memcpy(b.saved, b.start, b.size);
    memcpy(b.start, prefix, b.size); /* with its closing 0 */
    return b;
}

static void give_back(const struct borrowed *b)
{
    memcpy(b->start, b->saved, b->size);
}

struct wrapped {
    struct json object;
    uint8_t kid[ID], signature[64];
};

/* A wrapper of exactly four members; false is `malformed`. */
static bool unwrap(struct json body, const char *name, struct wrapped *to)
{
    int members;
    size_t size;
    to->object = member_of(body, name, &members);
    return members == 4 && to->object.at != NULL && *to->object.at == '{' && is_text(get(body, "alg"), "ed25519") &&
           hex_id(get(body, "signer_kid"), to->kid) &&
           base64(get(body, "sig_b64"), sizeof to->signature, sizeof to->signature, to->signature, &size);
}

/* Signed by the pinned key; only for objects inside in.message. */
static bool signed_by_device(const struct wrapped *w, const char *prefix)
{
    if (memcmp(w->kid, device_kid, ID) != 0)
        return false;
    struct borrowed b = lay_prefix(w->object.at, prefix);
    bool good = crypto_sign_verify_detached(w->signature, b.start, (size_t)(w->object.end - b.start), me.device_key) == 0;
    give_back(&b);
    return good;
}

/* The reference of a signed verdict: a hash of its one canonical spelling, however it was spelled here. */
static void reference(const struct wrapped *w, uint8_t ref[ID])
{
    crypto_hash_sha256_state hash;
    uint8_t digest[32];
    char sig[sodium_base64_ENCODED_LEN(64, sodium_base64_VARIANT_ORIGINAL)], kid[2 * ID + 1];
    sodium_bin2base64(sig, sizeof sig, w->signature, sizeof w->signature, sodium_base64_VARIANT_ORIGINAL);
    sodium_bin2hex(kid, sizeof kid, w->kid, ID);
    crypto_hash_sha256_init(&hash);
    const char *parts[] = {"{\"alg\":\"ed25519\",\"sig_b64\":\"", sig, "\",\"signer_kid\":\"", kid, "\",\"verdict\":"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        crypto_hash_sha256_update(&hash, (const uint8_t *)parts[i], strlen(parts[i]));
    crypto_hash_sha256_update(&hash, w->object.at, (size_t)(w->object.end - w->object.at));
    crypto_hash_sha256_update(&hash, (const uint8_t *)"}", 1);
    crypto_hash_sha256_final(&hash, digest);
    memcpy(ref, digest, ID);
}

static void kid_of(const uint8_t key[32], uint8_t kid[ID])
{
    uint8_t digest[32];
    crypto_hash_sha256(digest, key, 32);
    memcpy(kid, digest, ID);
}

/* ---- messages out: canonical JSON, members in order, nothing to escape */

static uint8_t *write_at(void)
{
    return out.message + PREFIX + out.size;
}

static void put(const char *letters)
{
    size_t size = strlen(letters);
    if (size > OUT - out.size) {
        out.overflow = true;
        return;
    }
    memcpy(write_at(), letters, size);
    out.size += size;
}

static void put_number(const char *name, uint64_t value)
{
    char digits[21], *p = digits + sizeof digits - 1;
    *p = 0;
    do
        *--p = (char)('0' + value % 10);
    while (value /= 10);
    put(name);
    put(p);
}

static void put_text(const char *name, const char *letters)
{
    put(name);
    put("\"");
    put(letters);
    put("\"");
}

static void put_hex(const char *name, const uint8_t *bytes, size_t size)
{
    char digits[2 * 32 + 1];
    put_text(name, sodium_bin2hex(digits, sizeof digits, bytes, size));
}

static void put_base64(const char *name, const uint8_t *bytes, size_t size)
{
    char digits[sodium_base64_ENCODED_LEN(64, sodium_base64_VARIANT_ORIGINAL)];
    put_text(name, sodium_bin2base64(digits, sizeof digits, bytes, size, sodium_base64_VARIANT_ORIGINAL));
}

static size_t begin_signed(const char *member)
{
    put("{\"body\":{\"alg\":\"ed25519\",\"");
    put(member);
    put("\":");
    return out.size;
}

/* Sign what was written since begin_signed, and close the message. */
static void end_signed(size_t object_at, const char *prefix, const char *type)
{
    uint8_t signature[64];
    struct borrowed b = lay_prefix(out.message + PREFIX + object_at, prefix);
    crypto_sign_detached(signature, NULL, b.start, (size_t)(write_at() - b.start), me.seed_and_key);
    give_back(&b);
    put_base64(",\"sig_b64\":", signature, sizeof signature);
    put_hex(",\"signer_kid\":", own_kid, ID);
    put_text("},\"type\":", type);
    put(",\"v\":1}");
}

static void write_hello(void)
{
    put_text("{\"body\":{\"gate_id\":", me.gate_id);
    put_text(",\"id\":", me.dbd_id);
    put_hex(",\"kid\":", own_kid, ID);
    put_base64(",\"nonce_b64\":", shake.own_nonce, NONCE);
    put(",\"role\":\"validator\"},\"type\":\"hello\",\"v\":1}");
}

static void write_prove(void)
{
    size_t object = begin_signed("hello_obj");
    put_text("{\"gate_id\":", me.gate_id);
    put_text(",\"id\":", me.dbd_id);
    put_base64(",\"own_nonce_b64\":", shake.own_nonce, NONCE);
    put_text(",\"peer_id\":", shake.peer_id);
    put_base64(",\"peer_nonce_b64\":", shake.peer_nonce, NONCE);
    put(",\"role\":\"validator\",\"v\":1}");
    end_signed(object, "svc.link.hello.v1", "prove");
}

static void write_request(void)
{
    size_t object = begin_signed("request");
    put_text("{\"dbd_id\":", me.dbd_id);
    put_text(",\"gate_id\":", me.gate_id);
    put_number(",\"issued_at_ms\":", asked.issued_at_ms);
    put_base64(",\"nonce_b64\":", asked.nonce, REQUEST_NONCE);
    put_number(",\"ttl_ms\":", asked.ttl_ms);
    put_hex(",\"txn_id\":", asked.txn, ID);
    put(",\"v\":1}");
    end_signed(object, "svc.gate.request.v1", "request");
}

static void write_decision(const struct answer *a)
{
    size_t object = begin_signed("decision_obj");
    put(a->actuated ? "{\"actuated\":true" : "{\"actuated\":false");
    put_text(",\"dbd_id\":", me.dbd_id);
    put_number(",\"decided_at_ms\":", a->decided_at_ms);
    put_number(",\"decision_seq\":", a->decision_seq);
    put_text(",\"gate_id\":", me.gate_id);
    put_base64(",\"nonce_b64\":", a->nonce, a->nonce_len);
    put_text(",\"outcome\":", a->actuated ? "LIBERAR" : "BLOQUEAR");
    put_text(",\"reason\":", REASONS[a->reason]);
    put_hex(",\"txn_id\":", a->txn, ID);
    put_hex(",\"v\":1,\"verdict_ref\":", a->ref, ID);
    put("}");
    end_signed(object, "svc.gate.decision.v1", "decision");
}

static void write_passage(const struct answer *a)
{
    size_t object = begin_signed("passage");
    put_number("{\"at_ms\":", a->at_ms);
    put_text(",\"cause\":", CAUSES[a->cause]);
    put_number(",\"dbd_event_seq\":", a->event_seq);
    put_text(",\"dbd_id\":", me.dbd_id);
    put_text(",\"gate_id\":", me.gate_id);
    put(a->passed ? ",\"passed\":true" : ",\"passed\":false");
    put_hex(",\"txn_id\":", a->txn, ID);
    put_hex(",\"v\":1,\"verdict_ref\":", a->ref, ID);
    put("}");
    end_signed(object, "svc.gate.passage.v1", "passage");
}

static int answered_at(const uint8_t ref[ID])
{
    for (int i = 0; i < REFS && (uint64_t)i < memory.decision_seq; i++)
        if (memcmp(memory.answers[i].ref, ref, ID) == 0)
            return i;
    return -1;
}

/* Nothing was ever forgotten, so what is not found was never answered. */
static bool remembers_all(void)
{
    return !memory.forgot && memory.decision_seq <= REFS;
}

/* Is `unknown` owed still? What was answered since it was asked about is not unknown. */
static bool still_unknown(void)
{
    uint8_t kept = 0;
    for (uint8_t i = 0; i < due.unknowns; i++)
        if (remembers_all() && answered_at(due.unknown[i]) < 0)
            memmove(due.unknown[kept++], due.unknown[i], ID);
    due.unknowns = kept;
    return kept > 0;
}

static void write_unknown(void)
{
    put("{\"body\":{\"verdict_refs\":[");
    for (uint8_t i = 0; i < due.unknowns; i++)
        put_hex(i ? "," : "", due.unknown[i], ID);
    put("]},\"type\":\"unknown\",\"v\":1}");
}

static void owe_error(const char *code, const char *about)
{
    if (due.errors == ERRORS) /* the oldest waiting one may be dropped */
        memmove(due.error, due.error + 1, sizeof *due.error * --due.errors);
    due.error[due.errors].code = code;
    due.error[due.errors++].about = about;
}

static void write_error(void)
{
    put_text("{\"body\":{\"about\":", due.error[0].about);
    put_text(",\"code\":", due.error[0].code);
    put("},\"type\":\"error\",\"v\":1}");
    memmove(due.error, due.error + 1, sizeof *due.error * --due.errors);
}

/* Of the answers owed the one that was decided first; −1 when none is. */
static int first_of(uint32_t bits)
{
    int first = -1;
    for (int i = 0; i < REFS; i++)
        if (bits >> i & 1 && (first < 0 || memory.answers[i].decision_seq < memory.answers[first].decision_seq))
            first = i;
    return first;
}

/* The most urgent message that is owed, into out.message; false when none is. */
static bool compose(uint64_t now)
{
    bool proven = shake.state == PROVEN;
    int decision = proven ? first_of(due.decisions) : -1, passage = proven ? first_of(due.passages) : -1;
    out.size = 0;
    if (due.hello) {
        due.hello = false;
        write_hello();
    } else if (due.prove) {
        due.prove = false;
        write_prove();
    } else if (due.errors) {
        write_error();
    } else if (proven && due.ready) {
        due.ready = false;
        put(me.passage_sensor ? "{\"body\":{\"passage_sensor\":true}" : "{\"body\":{\"passage_sensor\":false}");
        put(",\"type\":\"ready\",\"v\":1}");
    } else if (decision >= 0) {
        due.decisions &= ~(UINT32_C(1) << decision);
        write_decision(&memory.answers[decision]);
    } else if (passage >= 0) {
        due.passages &= ~(UINT32_C(1) << passage);
        write_passage(&memory.answers[passage]);
    } else if (proven && due.cancel) {
        due.cancel = false;
        put_hex("{\"body\":{\"txn_id\":", due.cancelled, ID);
        put("},\"type\":\"cancel\",\"v\":1}");
    } else if (proven && due.request) {
        due.request = false;
        write_request();
        asked.sent = true;
        asked.sent_ms = now;
        port_told(REQUEST_SENT, "", NULL);
    } else if (proven && !asked.open && still_unknown()) {
        write_unknown(); /* while a request is open one of them may be its verdict, and come yet */
        due.unknowns = 0;
    }
    if (out.size == 0 || out.overflow)
        return false;
    out.mid = out.next_mid++;
    out.next = out.transmissions = 0;
    out.leaving = out.timed = false;
    return true;
}

/* ---- frames out */

static void put_frame(uint8_t kind, uint8_t sess, uint16_t mid, uint8_t index, uint8_t count, const uint8_t *payload,
                      size_t size)
{
    uint8_t header[HEADER] = {1, kind, 0, sess, (uint8_t)(mid >> 8), (uint8_t)mid, index, count};
    uint32_t crc = 0xFFFFFFFF;
    struct cobs c = {.to = out.frame, .code = 1};
    if (out.zero_first)
        c.to[c.len++] = 0;
    out.zero_first = false;
    c.code_at = c.len++;
    for (size_t i = 0; i < HEADER + size; i++) {
        uint8_t byte = i < HEADER ? header[i] : payload[i - HEADER];
        crc = crc_byte(crc, byte);
        cobs_byte(&c, byte);
    }
    for (int shift = 24; shift >= 0; shift -= 8)
        cobs_byte(&c, (uint8_t)(~crc >> shift));
    c.to[c.code_at] = c.code;
    c.to[c.len++] = 0;
    out.len = c.len;
    out.done = 0;
    out.ends_message = false;
}

/* The most urgent frame: resets, answers, then the message in flight or the next one. */
static bool next_frame(uint64_t now)
{
    uint8_t tags[2 * TAG], sess = cable.peer_tag[0];
    if (cable.rstack_due) {
        cable.rstack_due = false;
        memcpy(tags, cable.peer_tag, TAG);
        memcpy(tags + TAG, cable.own_tag, TAG);
        put_frame(RSTACK, 0, 0, 0, 1, tags, sizeof tags);
    } else if (cable.rst_due) {
        cable.rst_due = false;
        put_frame(RST, 0, 0, 0, 1, cable.own_tag, TAG);
    } else if (cable.state != UP) {
        return false;
    } else if (cable.acks) {
        put_frame(ACK, sess, cable.ack[0], 0, 1, NULL, 0);
        memmove(cable.ack, cable.ack + 1, sizeof *cable.ack * --cable.acks);
    } else if (cable.pongs_due) {
        cable.pongs_due--;
        put_frame(PONG, sess, 0, 0, 1, NULL, 0);
    } else if (cable.ping_due) {
        cable.ping_due = false;
        put_frame(PING, sess, 0, 0, 1, NULL, 0);
    } else if (out.size || compose(now)) {
        uint8_t count = (uint8_t)((out.size + SLICE - 1) / SLICE), index = out.next;
        if (index == count)
            return false; /* all of it is out; its ACK is awaited */
        size_t at = (size_t)index * SLICE, size = index + 1 < count ? SLICE : out.size - at;
        put_frame(DATA, sess, out.mid, index, count, out.message + PREFIX + at, size);
        out.next++;
        out.ends_message = out.next == count;
    } else {
        return false;
    }
    return true;
}

/* Hand the port what it takes; the timer of a message starts when its last byte has left. */
static void send_frames(uint64_t now)
{
    while (cable.state != CLOSED) {
        if (out.done < out.len) {
            size_t took = port_write(out.frame + out.done, out.len - out.done);
            out.done += took;
            if (took)
                cable.last_sent = now;
            if (out.done < out.len)
                break;
            out.leaving = out.leaving || out.ends_message;
        }
        if (!next_frame(now))
            break;
    }
    if (out.leaving && port_unsent() == 0) {
        out.leaving = false;
        out.timed = true;
        out.deadline = now + RETRANSMIT_MS[out.transmissions++];
    }
}

/* ---- sessions */

static void end_request(const char *why)
{
    if (asked.open)
        port_told(REQUEST_ENDED, why, NULL);
    asked.open = due.request = false;
}

static void clear_session(const char *why)
{
    if (shake.state == PROVEN)
        port_told(LINK_DOWN, why, NULL);
    if (out.done < out.len)
        out.zero_first = true; /* a frame is given up: begun, or not begun and with the 0x00 for one before it */
    out.len = out.done = out.size = 0;
    out.next_mid = 0;
    out.leaving = out.timed = false;
    in.expected = in.delivered = 0;
    in.have = 0;
    cable.peer_known = cable.rst_due = cable.rstack_due = cable.ping_due = false;
    cable.pongs_due = cable.acks = 0;
    shake.state = NONE;
    memset(&due, 0, sizeof due); /* the device asks again by resolve */
}

static void fresh_tag(void)
{
    uint8_t last = cable.own_tag[0];
    do
        randombytes_buf(cable.own_tag, TAG);
    while (cable.own_tag[0] == last);
}

static void reset_link(uint64_t now, const char *why)
{
    clear_session(why);
    fresh_tag();
    cable.state = RESETTING;
    cable.rst_due = true;
    cable.next_rst = now + RST_EVERY_MS;
}

static void session_begins(uint64_t now)
{
    cable.state = UP;
    cable.rst_due = false;
    cable.last_received = cable.last_sent = now;
    shake.state = GREETED;
    shake.deadline = now + HANDSHAKE_MS;
    randombytes_buf(shake.own_nonce, NONCE);
    due.hello = true;
}

static void note_peer(const uint8_t tag[TAG])
{
    memcpy(cable.peer_tag, tag, TAG);
    cable.peer_known = true;
}

static void take_rst(const uint8_t tag[TAG], uint64_t now)
{
    bool current = cable.peer_known && memcmp(tag, cable.peer_tag, TAG) == 0;
    cable.last_received = now;
    if (cable.state == UP && !current) {
        clear_session("peer_reset");
        fresh_tag();
        session_begins(now);
    }
    note_peer(tag);
    cable.rstack_due = true;
}

static void take_message(struct json text, bool hint, uint64_t now);

static void take_data(uint16_t mid, uint8_t index, uint8_t count, const uint8_t *payload, size_t size, uint64_t now)
{
    if (mid != in.expected) {
        if ((uint16_t)(in.expected - mid) > in.delivered)
            return;
    } else {
        if (in.have && in.count != count)
            return;
        in.count = count;
        memcpy(in.message + PREFIX + (size_t)index * SLICE, payload, size);
        in.have |= (uint8_t)(1 << index);
        if (index == count - 1)
            in.last_size = size;
    }
    cable.last_received = now;
    bool whole = mid == in.expected && in.have == (1 << count) - 1;
    if (mid == in.expected && !whole)
        return;
    bool noted = false;
    for (uint8_t i = 0; i < cable.acks; i++)
        noted = noted || cable.ack[i] == mid;
    if (!noted && cable.acks < ACKS)
        cable.ack[cable.acks++] = mid;
    if (!whole)
        return;
    in.have = 0;
    in.expected++;
    in.delivered = (uint16_t)(in.delivered + (in.delivered < 0x8000));
    uint8_t *start = in.message + PREFIX;
    take_message((struct json){start, start + (size_t)(count - 1) * SLICE + in.last_size}, false, now);
}

static void take_ack(uint16_t mid)
{
    bool sent_whole = out.transmissions > 0 || (size_t)out.next * SLICE >= out.size;
    if (out.size && out.mid == mid && sent_whole) {
        out.size = 0;
        out.leaving = out.timed = false;
    }
}

/* What a kind allows in a frame; everything else is dropped whole. */
static bool well_formed(const uint8_t *raw, size_t size)
{
    uint8_t kind = raw[1], chan = raw[2], sess = raw[3], index = raw[6], count = raw[7];
    bool wide = raw[4] == 0 && raw[5] == 0 && chan == 0, single = index == 0 && count == 1;
    if (raw[0] != 1 || chan > 1)
        return false;
    switch (kind) {
    case DATA: return count >= 1 && count <= FRAGMENTS && index < count && (index == count - 1 ? size > 0 : size == SLICE);
    case ACK: return single && size == 0;
    case RST: return single && wide && sess == 0 && size == TAG;
    case RSTACK: return single && wide && sess == 0 && size == 2 * TAG;
    case PING:
    case PONG: return single && wide && size == 0;
    case HINT: return single && wide;
    default: return false;
    }
}

/* Decode the bytes between two 0x00, in place: size of the payload, or −1 for no frame. */
static int decode_frame(uint8_t *raw, size_t encoded)
{
    size_t size = cobs_decode(raw, encoded);
    if (size < HEADER + CRC || size > MAX_RAW)
        return -1;
    const uint8_t *end = raw + size - CRC;
    uint32_t crc = (uint32_t)end[0] << 24 | (uint32_t)end[1] << 16 | (uint32_t)end[2] << 8 | end[3];
    size -= HEADER + CRC;
    return crc_of(raw, HEADER + size) == crc && well_formed(raw, size) ? (int)size : -1;
}

static void take_frame(uint64_t now)
{
    uint8_t *raw = in.frame, *payload = raw + HEADER;
    int size = decode_frame(raw, in.held);
    uint16_t mid = (uint16_t)(raw[4] << 8 | raw[5]);
    if (size < 0)
        return;
    if (raw[1] == RST) {
        take_rst(payload, now);
    } else if (raw[1] == RSTACK) {
        if (cable.state == RESETTING && memcmp(payload, cable.own_tag, TAG) == 0) {
            note_peer(payload + TAG);
            session_begins(now);
        }
    } else if (cable.state == UP && raw[3] == cable.own_tag[0] && raw[2] == 0) { /* mail is not carried */
        if (raw[1] != DATA)
            cable.last_received = now;
        switch (raw[1]) {
        case DATA: take_data(mid, raw[6], raw[7], payload, (size_t)size, now); break;
        case ACK: take_ack(mid); break;
        case PING: cable.pongs_due = (uint8_t)(cable.pongs_due + (cable.pongs_due < ACKS)); break;
        case HINT: take_message((struct json){payload, payload + size}, true, now); break;
        default: break;
        }
    }
}

/* ---- what the messages mean */

static void refuse_peer(const char *about, uint64_t now)
{
    memset(&due, 0, sizeof due);
    owe_error("unpaired", about);
    shake.state = REJECTED;
    shake.deadline = now + REFUSAL_MS;
    port_told(REFUSED, "unpaired", NULL);
}

static void take_hello(struct json body, uint64_t now)
{
    char gate[NAME + 1];
    uint8_t kid[ID];
    size_t size;
    if (shake.state != GREETED)
        return; /* a second hello in a session is ignored */
    bool good = is_text(get(body, "role"), "device") && text(get(body, "gate_id"), NAMES, 1, NAME, gate) &&
                text(get(body, "id"), NAMES, 1, NAME, shake.peer_id) && hex_id(get(body, "kid"), kid) &&
                base64(get(body, "nonce_b64"), NONCE, NONCE, shake.peer_nonce, &size) && strcmp(gate, me.gate_id) == 0 &&
                memcmp(kid, device_kid, ID) == 0;
    if (!good) {
        refuse_peer("hello", now);
        return;
    }
    shake.state = PROVING;
    due.prove = true;
}

static bool proof_holds(struct json body)
{
    struct wrapped w;
    uint8_t theirs[NONCE], ours[NONCE];
    size_t size;
    int64_t v;
    return unwrap(body, "hello_obj", &w) && signed_by_device(&w, "svc.link.hello.v1") &&
           integer(get(w.object, "v"), 1, 1, &v) && is_text(get(w.object, "role"), "device") &&
           is_text(get(w.object, "id"), shake.peer_id) && is_text(get(w.object, "gate_id"), me.gate_id) &&
           is_text(get(w.object, "peer_id"), me.dbd_id) &&
           base64(get(w.object, "own_nonce_b64"), NONCE, NONCE, theirs, &size) &&
           base64(get(w.object, "peer_nonce_b64"), NONCE, NONCE, ours, &size) &&
           memcmp(theirs, shake.peer_nonce, NONCE) == 0 && memcmp(ours, shake.own_nonce, NONCE) == 0;
}

static void take_prove(struct json body, uint64_t now)
{
    if (shake.state == PROVEN)
        return;
    if (shake.state != PROVING || !proof_holds(body)) {
        refuse_peer("prove", now);
        return;
    }
    shake.state = PROVEN;
    due.ready = true;
    due.request = asked.open; /* the identical bytes again in a new session: the ttl starts again */
    port_told(LINK_UP, shake.peer_id, NULL);
}

static void take_status(struct json body)
{
    struct wrapped w;
    uint8_t nonce[NONCE];
    size_t size;
    int64_t v;
    bool serving;
    const char *wrong = NULL;
    if (!unwrap(body, "status_obj", &w))
        wrong = "malformed";
    else if (!signed_by_device(&w, "svc.link.status.v1"))
        wrong = "bad_signature";
    else if (!integer(get(w.object, "v"), 1, 1, &v) || !boolean(get(w.object, "serving"), &serving) ||
             !base64(get(w.object, "nonce_b64"), NONCE, NONCE, nonce, &size) ||
             memcmp(nonce, shake.own_nonce, NONCE) != 0)
        wrong = "malformed";
    else if (!is_text(get(w.object, "device_id"), shake.peer_id))
        wrong = "wrong_gate";
    if (wrong != NULL) {
        owe_error(wrong, "status");
        port_told(REFUSED, wrong, NULL);
    } else {
        port_told(STATUS, serving ? "serving" : "not serving", NULL);
    }
}

static void say_again(int place)
{
    due.decisions |= UINT32_C(1) << place;
    if (memory.answers[place].has_passage)
        due.passages |= UINT32_C(1) << place;
}

/* Why a verdict whose signature, gate and device hold may not be acted on; NULL when it may. */
static const char *why_not(struct json verdict, const struct answer *a, uint64_t now)
{
    int64_t issued_at_ms, ttl_ms, seq;
    if (!asked.open || !asked.sent || memcmp(a->txn, asked.txn, ID) != 0)
        return "not_open";
    if (a->nonce_len != REQUEST_NONCE || memcmp(a->nonce, asked.nonce, REQUEST_NONCE) != 0 ||
        !integer(get(verdict, "issued_at_ms"), 0, MOST, &issued_at_ms) ||
        !integer(get(verdict, "ttl_ms"), 0, MOST, &ttl_ms) || (uint64_t)issued_at_ms != asked.issued_at_ms ||
        (uint64_t)ttl_ms != asked.ttl_ms)
        return "mismatch";
    if (now > asked.sent_ms + asked.ttl_ms + LATE_AFTER_TTL_MS)
        return "late";
    if (!integer(get(verdict, "verdict_seq"), 1, MOST, &seq) || (uint64_t)seq <= memory.highest_verdict_seq)
        return "old_seq";
    return NULL;
}

static void answer_verdict(struct json verdict, const uint8_t ref[ID], int result, uint64_t now)
{
    struct answer a = {.decision_seq = memory.decision_seq + 1, .decided_at_ms = port_wall_ms()};
    size_t size = 0;
    int64_t seq = 0;
    memcpy(a.ref, ref, ID);
    if (!hex_id(get(verdict, "txn_id"), a.txn) || !base64(get(verdict, "nonce_b64"), 16, NONCE, a.nonce, &size) ||
        !integer(get(verdict, "verdict_seq"), 1, MOST, &seq))
        return; /* cannot be: verdict_result has seen them */
    a.nonce_len = (uint8_t)size;
    const char *refused = why_not(verdict, &a, now);
    bool its_own = asked.open && memcmp(a.txn, asked.txn, ID) == 0;
    a.reason = (uint8_t)(refused ? STALE : RESULTS[result].reason);
    a.actuated = !refused && result == MATCH;
    /* Durable first: the counters, the highest verdict_seq acted on, and the answer itself. */
    int place = (int)(memory.decision_seq % REFS);
    struct answer forgotten = memory.answers[place];
    uint64_t highest = memory.highest_verdict_seq;
    memory.answers[place] = a;
    memory.decision_seq++;
    if (!refused)
        memory.highest_verdict_seq = (uint64_t)seq;
    if (!port_save(&memory)) {
        memory.answers[place] = forgotten;
        memory.decision_seq--;
        memory.highest_verdict_seq = highest;
        port_told(REFUSED, "not_saved", NULL);
        return; /* the gate stays closed; the device asks later by resolve */
    }
    if (a.actuated)
        port_open_gate();
    due.passages &= ~(UINT32_C(1) << place);
    due.decisions |= UINT32_C(1) << place;
    port_told(VERDICT, refused ? refused : RESULTS[result].result, &memory.answers[place]);
    if (its_own && (refused == NULL || strcmp(refused, "mismatch") != 0))
        asked.open = due.request = false;
}

static void take_verdict(struct json body, uint64_t now)
{
    struct wrapped w;
    uint8_t ref[ID];
    const char *wrong = NULL;
    int result = -1;
    if (!unwrap(body, "verdict", &w))
        wrong = "malformed";
    else if (!signed_by_device(&w, "svc.gate.verdict.v1"))
        wrong = "bad_signature";
    else if ((result = verdict_result(w.object)) < 0)
        wrong = "malformed";
    else if (!is_text(get(w.object, "gate_id"), me.gate_id) || !is_text(get(w.object, "dbd_id"), me.dbd_id) ||
             !is_text(get(w.object, "device_id"), shake.peer_id))
        wrong = "wrong_gate";
    if (wrong != NULL) {
        owe_error(wrong, "verdict");
        port_told(REFUSED, wrong, NULL);
        return;
    }
    reference(&w, ref);
    int known = answered_at(ref);
    if (known >= 0) {
        say_again(known); /* the same decision, byte for byte */
        port_told(VERDICT, "repeat", &memory.answers[known]);
        return;
    }
    answer_verdict(w.object, ref, result, now);
}

static void take_resolve(struct json body)
{
    struct json refs = get(body, "verdict_refs");
    uint8_t ref[REFS][ID];
    int count = 0;
    bool good = refs.at != NULL && *refs.at == '[';
    uint8_t *p = good ? skip_space(refs.at + 1, refs.end) : NULL;
    while (good && *p != ']') {
        uint8_t *end = skip_value(p, refs.end, DEPTH, false);
        good = count < REFS && hex_id((struct json){p, end}, ref[count]);
        count++;
        p = skip_space(end, refs.end);
        p = *p == ',' ? skip_space(p + 1, refs.end) : p;
    }
    if (!good || count == 0) {
        owe_error("malformed", "resolve");
        return;
    }
    due.unknowns = 0;
    for (int i = 0; i < count; i++) {
        int known = answered_at(ref[i]);
        if (known >= 0)
            say_again(known);
        else
            memcpy(due.unknown[due.unknowns++], ref[i], ID);
    }
}

static void take_error(struct json body)
{
    uint8_t txn[ID];
    char code[33];
    struct json said = get(body, "txn_id");
    struct json about = get(body, "about");
    /* A device that could not read the type says "message"; then the txn_id tells. */
    int of_request = is_text(about, "request");
    if (!asked.open || !(of_request || is_text(about, "message")) || !text(get(body, "code"), WORDS, 1, 32, code))
        return;
    if ((said.at == NULL && of_request) || (hex_id(said, txn) && memcmp(txn, asked.txn, ID) == 0))
        end_request(code);
}

static void take_guide(struct json body)
{
    static const char SET[] = WORDS;
    uint8_t txn[ID];
    char hint[33];
    if (asked.open && hex_id(get(body, "txn_id"), txn) && memcmp(txn, asked.txn, ID) == 0 &&
        text(get(body, "hint"), SET, 1, 32, hint))
        port_told(GUIDE, hint, NULL);
}

/* The types of the contract: those that a device sends on this channel, and those that it does not. */
enum type { T_HELLO, T_PROVE, T_ERROR, T_STATUS, T_VERDICT, T_RESOLVE, T_GUIDE, T_FOREIGN };
static const struct {
    const char *name;
    enum type type;
} TYPES[] = {
    {"hello", T_HELLO},       {"prove", T_PROVE},         {"error", T_ERROR},         {"status", T_STATUS},
    {"verdict", T_VERDICT},   {"resolve", T_RESOLVE},     {"guide", T_GUIDE},         {"ready", T_FOREIGN},
    {"request", T_FOREIGN},   {"cancel", T_FOREIGN},      {"decision", T_FOREIGN},    {"passage", T_FOREIGN},
    {"unknown", T_FOREIGN},   {"mail", T_FOREIGN},        {"mail_ack", T_FOREIGN},    {"mail_pull", T_FOREIGN},
    {"mail_none", T_FOREIGN},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

/* The error that an envelope deserves, or NULL; `which` is its place in TYPES, TYPE_COUNT when it has none. */
static const char *judge(struct json message, size_t *which)
{
    int64_t v;
    int members;
    *which = TYPE_COUNT;
    if (message.end - message.at > MAX_MESSAGE || !is_message(message))
        return "malformed";
    struct json type = get(message, "type"), body = member_of(message, "body", &members);
    /* The type first: an error is never answered, however the rest reads, and the answer names what it is about. */
    for (*which = 0; *which < TYPE_COUNT && !is_text(type, TYPES[*which].name);)
        ++*which;
    if (!integer(get(message, "v"), -MOST, MOST, &v))
        return "malformed";
    if (v != 1)
        return "unsupported_version";
    if (members != 3 || type.at == NULL || *type.at != '"' || body.at == NULL || *body.at != '{')
        return "malformed";
    return *which == TYPE_COUNT || TYPES[*which].type == T_FOREIGN ? "unsupported_type" : NULL;
}

static void take_message(struct json message, bool hint, uint64_t now)
{
    size_t which;
    if (shake.state == REJECTED)
        return; /* one second in which nothing is served */
    const char *wrong = judge(message, &which);
    enum type type = which < TYPE_COUNT ? TYPES[which].type : T_FOREIGN;
    const char *about = which < TYPE_COUNT ? TYPES[which].name : "message";
    if (wrong == NULL && hint != (type == T_GUIDE))
        wrong = "malformed";
    if (shake.state != PROVEN && (wrong == NULL ? type > T_ERROR : strcmp(wrong, "unsupported_type") == 0))
        wrong = "unpaired"; /* to a type that is not known too */
    if (wrong != NULL) {
        if (!hint && type != T_ERROR) /* hints and errors are never answered */
            owe_error(wrong, about);
        return;
    }
    struct json body = get(message, "body");
    switch (type) {
    case T_HELLO: take_hello(body, now); break;
    case T_PROVE: take_prove(body, now); break;
    case T_ERROR: take_error(body); break;
    case T_STATUS: take_status(body); break;
    case T_VERDICT: take_verdict(body, now); break;
    case T_RESOLVE: take_resolve(body); break;
    case T_GUIDE: take_guide(body); break;
    case T_FOREIGN: break;
    }
}

/* ---- what a firmware calls */

static bool validator_begin(void)
{
    if (sodium_init() < 0 || crypto_core_ed25519_is_valid_point(me.device_key) != 1)
        return false;
    kid_of(me.seed_and_key + 32, own_kid);
    kid_of(me.device_key, device_kid);
    if (memcmp(memory.device_kid, device_kid, ID) != 0) { /* new keys start again at verdict_seq 1 */
        memcpy(memory.device_kid, device_kid, ID);
        memory.highest_verdict_seq = 0;
    }
    if (memcmp(memory.own_kid, own_kid, ID) != 0) {
        /* Another key starts its counters, and cannot sign again what the one before it signed; the highest
           verdict_seq is the device's, and stays. */
        memory.forgot = memory.forgot || memory.decision_seq > 0;
        memcpy(memory.own_kid, own_kid, ID);
        memory.decision_seq = memory.event_seq = 0;
        memset(memory.answers, 0, sizeof memory.answers);
    }
    return true;
}

static void validator_port_opened(void)
{
    in.held = 0;
    in.overrun = false;
    out.zero_first = true;
    reset_link(port_now_ms(), "port_closed");
}

static void validator_port_closed(void)
{
    clear_session("port_closed");
    cable.state = CLOSED;
}

static void validator_bytes(const uint8_t *data, size_t size)
{
    uint64_t now = port_now_ms();
    for (; size--; data++) {
        if (*data != 0) {
            in.overrun = in.overrun || in.held == sizeof in.frame;
            if (!in.overrun)
                in.frame[in.held++] = *data;
            continue;
        }
        if (in.held && !in.overrun && cable.state != CLOSED)
            take_frame(now);
        in.held = 0;
        in.overrun = false;
    }
    send_frames(now);
}

/* Call every few milliseconds. */
static void validator_tick(void)
{
    uint64_t now = port_now_ms();
    if (cable.state == RESETTING && now >= cable.next_rst) {
        cable.rst_due = true;
        cable.next_rst = now + RST_EVERY_MS;
    }
    if (cable.state == UP) {
        bool timed_out = out.size && out.timed && now >= out.deadline;
        if (now - cable.last_received >= SILENCE_MS) {
            reset_link(now, "silent");
        } else if (timed_out && out.transmissions == TRANSMISSIONS) {
            reset_link(now, "unanswered");
        } else if (shake.state != PROVEN && now >= shake.deadline) {
            reset_link(now, shake.state == REJECTED ? "unpaired" : "handshake_timeout");
        } else {
            cable.ping_due = cable.ping_due || now - cable.last_sent >= PING_AFTER_MS;
            if (timed_out) {
                out.timed = false;
                out.next = 0;
            }
        }
    }
    if (asked.open && asked.sent && now >= asked.sent_ms + asked.ttl_ms + LATE_AFTER_TTL_MS)
        end_request("no_answer");
    send_frames(now);
}

/* Ask for a hand; an open request is replaced. It goes out as soon as the device has proven itself. */
static void validator_ask(uint32_t ttl_ms)
{
    end_request("replaced");
    randombytes_buf(asked.txn, ID);
    randombytes_buf(asked.nonce, REQUEST_NONCE);
    asked.issued_at_ms = port_wall_ms();
    asked.ttl_ms = ttl_ms;
    asked.open = due.request = true;
    asked.sent = false;
}

static void validator_cancel(void)
{
    if (asked.open && asked.sent) { /* one that never went out needs no cancel */
        memcpy(due.cancelled, asked.txn, ID);
        due.cancel = true;
    }
    end_request("cancelled");
}

/* The turn sensor, once for each gate opened: did a person go through after the decision in `place`? */
static void validator_turned(int place, bool passed, enum cause cause)
{
    struct answer *a = &memory.answers[place];
    a->has_passage = 1;
    a->passed = passed;
    a->cause = (uint8_t)cause;
    a->at_ms = port_wall_ms();
    a->event_seq = ++memory.event_seq;
    if (!port_save(&memory)) {
        a->has_passage = 0;
        memory.event_seq--;
        return;
    }
    due.passages |= UINT32_C(1) << place;
    port_told(PASSAGE, CAUSES[cause], a);
}

static bool validator_idle(void)
{
    return !out.size && !due.decisions && !due.passages && !due.errors;
}

/* ======== PORT: everything below is for POSIX, and is what a firmware replaces ======== */

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static int cable_fd = -1;
static const char *state_path;
static unsigned long passages_left;
static bool count_passages, manual, device_serves = true;
static uint32_t ttl_ms = 15000;
static uint64_t turn_at_ms, ask_at_ms, bye_ms; /* bye_ms: leave when all is said, and by then */
static int turn_place = -1;
static volatile sig_atomic_t interrupted;

static uint64_t clock_ms(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static uint64_t port_now_ms(void)
{
    return clock_ms(CLOCK_MONOTONIC);
}

static uint64_t port_wall_ms(void)
{
    return clock_ms(CLOCK_REALTIME);
}

static size_t port_write(const uint8_t *data, size_t size)
{
    ssize_t took = cable_fd >= 0 ? write(cable_fd, data, size) : -1;
    return took > 0 ? (size_t)took : 0; /* a port that is gone shows itself when it is read */
}

static size_t port_unsent(void)
{
    int held = 0;
    return cable_fd >= 0 && ioctl(cable_fd, TIOCOUTQ, &held) == 0 && held > 0 ? (size_t)held : 0;
}

/* The state file: a mark with the format's number, the memory as this machine lays it out, SHA-256 of both. */
struct state_file {
    char mark[8];
    struct memory memory;
    uint8_t digest[32];
};
static const char MARK[8] = "LINK1-2";

static bool port_save(const struct memory *m)
{
    char fresh[4096];
    int length = snprintf(fresh, sizeof fresh, "%s.new", state_path);
    if (length < 0 || (size_t)length >= sizeof fresh)
        return false;
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        return false;
    struct state_file file;
    memset(&file, 0, sizeof file);
    memcpy(file.mark, MARK, sizeof MARK);
    memcpy(&file.memory, m, sizeof *m);
    crypto_hash_sha256(file.digest, (const uint8_t *)&file, offsetof(struct state_file, digest));
    bool good = write(fd, &file, sizeof file) == (ssize_t)sizeof file && fsync(fd) == 0;
    good = close(fd) == 0 && good && rename(fresh, state_path) == 0;
    char *slash = strrchr(fresh, '/');
    if (slash != NULL)
        slash[1] = 0;
    int folder = open(slash != NULL ? fresh : ".", O_RDONLY | O_DIRECTORY);
    good = good && folder >= 0 && fsync(folder) == 0;
    if (folder >= 0)
        close(folder);
    return good;
}

/* What composing an answer relies on: its words are looked up, and its nonce is copied. */
static bool sound(const struct memory *m)
{
    for (int i = 0; i < REFS && (uint64_t)i < m->decision_seq; i++) {
        const struct answer *a = &m->answers[i];
        if (a->nonce_len < 16 || a->nonce_len > NONCE || a->reason >= sizeof REASONS / sizeof *REASONS ||
            a->cause >= sizeof CAUSES / sizeof *CAUSES)
            return false;
    }
    return true;
}

/* No file is a validator that never decided; one that is not as it was written is refused. */
static bool load_state(void)
{
    struct state_file file = {.mark = ""};
    uint8_t digest[32];
    int fd = open(state_path, O_RDONLY);
    if (fd < 0)
        return errno == ENOENT;
    bool good = read(fd, &file, sizeof file) == (ssize_t)sizeof file;
    close(fd);
    crypto_hash_sha256(digest, (const uint8_t *)&file, offsetof(struct state_file, digest));
    good = good && memcmp(file.mark, MARK, sizeof MARK) == 0 && memcmp(file.digest, digest, sizeof digest) == 0 &&
           sound(&file.memory);
    if (good)
        memory = file.memory;
    return good;
}

static void port_open_gate(void)
{
    puts("{\"event\":\"gate_opened\"}");
}

static void print_answer(const char *word, const struct answer *a)
{
    char ref[2 * ID + 1], txn[2 * ID + 1];
    sodium_bin2hex(ref, sizeof ref, a->ref, ID);
    sodium_bin2hex(txn, sizeof txn, a->txn, ID);
    printf("{\"event\":\"verdict\",\"said\":\"%s\",\"txn_id\":\"%s\",\"verdict_ref\":\"%s\",\"reason\":\"%s\","
           "\"actuated\":%s,\"decision_seq\":%llu}\n",
           word, txn, ref, REASONS[a->reason], a->actuated ? "true" : "false", (unsigned long long)a->decision_seq);
}

static void port_told(enum news what, const char *word, const struct answer *a)
{
    static const char *const EVENTS[] = {"link_up", "link_down", "status", "guide", "request", "request_ended",
                                         "verdict", "passage", "refused"};
    if (what == VERDICT) {
        print_answer(word, a);
        if (a->actuated && me.passage_sensor && strcmp(word, "repeat") != 0) {
            turn_place = (int)(a - memory.answers);
            turn_at_ms = port_now_ms() + 300;
        } else if (strcmp(word, "repeat") != 0) {
            passages_left -= passages_left > 0;
        }
    } else {
        printf("{\"event\":\"%s\",\"detail\":\"%s\"}\n", EVENTS[what], word);
    }
    if (what == PASSAGE)
        passages_left -= passages_left > 0;
    if (what == STATUS)
        device_serves = strcmp(word, "serving") == 0;
    if (what == REQUEST_ENDED) { /* not at once where a new request cures nothing */
        const bool in_vain = strcmp(word, "expired") != 0 && strcmp(word, "no_answer") != 0;
        ask_at_ms = port_now_ms() + (in_vain || !device_serves ? 1000 : 0);
    }
    fflush(stdout);
}

static bool open_cable(const char *path)
{
    struct termios t;
    cable_fd = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (cable_fd < 0)
        return false;
    if (flock(cable_fd, LOCK_EX | LOCK_NB) == 0 && tcgetattr(cable_fd, &t) == 0) {
        cfmakeraw(&t); /* which leaves flow control, parity checks and stop bits as the last program had them */
        t.c_iflag &= ~(tcflag_t)(IXOFF | IXANY | INPCK);
        t.c_cflag &= ~(tcflag_t)(CSTOPB | CRTSCTS);
        t.c_cflag |= CLOCAL | CREAD;
        cfsetspeed(&t, B921600);
        if (tcsetattr(cable_fd, TCSANOW, &t) == 0)
            return true;
    }
    close(cable_fd);
    cable_fd = -1;
    return false;
}

static void close_cable(void)
{
    tcflush(cable_fd, TCIOFLUSH);
    close(cable_fd);
    cable_fd = -1;
    validator_port_closed();
}

static void say_bye(void)
{
    bye_ms = bye_ms ? bye_ms : port_now_ms() + 3000;
}

static bool leaving(void)
{
    bool all_said = validator_idle() && turn_place < 0 && !out.len;
    return (bye_ms && (all_said || shake.state != PROVEN || port_now_ms() >= bye_ms)) ||
           (count_passages && passages_left == 0 && all_said);
}

static void command(char letter)
{
    switch (letter) {
    case 'a': validator_ask(ttl_ms); break;
    case 'c': validator_cancel(); break;
    case 'r':
        if (cable_fd >= 0)
            reset_link(port_now_ms(), "own_reset");
        break;
    case 'q': say_bye(); break;
    default: break;
    }
}

static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static void serve(const char *path)
{
    uint64_t reopen_ms = 0;
    bool listening = true;
    while (!leaving()) {
        uint64_t now = port_now_ms();
        if (interrupted)
            say_bye();
        if (cable_fd < 0 && now >= reopen_ms) {
            reopen_ms = now + 250;
            if (open_cable(path))
                validator_port_opened();
        }
        bool more = !count_passages || passages_left > 0;
        if (!manual && !bye_ms && more && !asked.open && turn_place < 0 && now >= ask_at_ms)
            validator_ask(ttl_ms);
        if (turn_place >= 0 && now >= turn_at_ms) {
            int place = turn_place;
            turn_place = -1;
            validator_turned(place, true, TURNED);
        }
        validator_tick();
        if (out.done == out.len)
            out.len = out.done = 0;
        struct pollfd watched[2] = {{.fd = cable_fd, .events = POLLIN},
                                    {.fd = listening ? STDIN_FILENO : -1, .events = POLLIN}};
        if (cable_fd >= 0 && out.len)
            watched[0].events |= POLLOUT;
        poll(watched, 2, out.leaving ? 2 : 10);
        if (cable_fd >= 0 && watched[0].revents & (POLLIN | POLLHUP | POLLERR)) {
            uint8_t piece[512];
            ssize_t got = read(cable_fd, piece, sizeof piece);
            if (got > 0)
                validator_bytes(piece, (size_t)got);
            else if (got == 0 || (errno != EAGAIN && errno != EINTR))
                close_cable();
        }
        if (watched[1].revents) {
            char letter;
            listening = read(STDIN_FILENO, &letter, 1) == 1;
            if (listening)
                command(letter);
        }
    }
    for (int i = 0; i < 100 && port_unsent(); i++)
        usleep(2000);
}

/* ---- checks against the page: golden frames and golden signature, and judging lines from standard input */

static bool same_frame(uint8_t kind, uint8_t sess, uint16_t mid, const char *payload, size_t size, const char *wanted)
{
    char hex[2 * sizeof out.frame + 1];
    uint8_t copy[sizeof in.frame];
    put_frame(kind, sess, mid, 0, 1, (const uint8_t *)payload, size);
    sodium_bin2hex(hex, sizeof hex, out.frame, out.len);
    memcpy(copy, out.frame, out.len - 1);
    bool back = decode_frame(copy, out.len - 1) == (int)size && memcmp(copy + HEADER, payload, size) == 0;
    bool good = back && strcmp(hex, wanted) == 0;
    printf("%s frame, %zu bytes\n", good ? "good" : "BAD ", strlen(wanted) / 2);
    out.len = out.done = 0;
    return good;
}

/* A frame that is given up when it has begun, then one that is given up before: the third has its 0x00 first. */
static bool zero_after_given_up(void)
{
    put_frame(PING, 1, 0, 0, 1, NULL, 0);
    out.done = 5;
    clear_session("");
    put_frame(PING, 1, 0, 0, 1, NULL, 0);
    clear_session("");
    put_frame(PING, 1, 0, 0, 1, NULL, 0);
    bool good = out.frame[0] == 0;
    printf("%s 0x00 after frames given up\n", good ? "good" : "BAD ");
    return good;
}

static bool golden(void)
{
    static const char TAGS[] = "\1\2\3\4\5\6\7\10\21\22\23\24\25\26\27\30";
    static const char REQUEST[] =
        "{\"body\":{\"alg\":\"ed25519\",\"request\":{\"dbd_id\":\"dbd-1\",\"gate_id\":\"gate-1\",\"issued_at_ms\":"
        "1700000000000,\"nonce_b64\":\"AAECAwQFBgcICQoLDA0ODw==\",\"ttl_ms\":15000,\"txn_id\":"
        "\"000102030405060708090a0b0c0d0e0f\",\"v\":1},\"sig_b64\":\"Zjt68Od6cf4CPI9MCiIkOWO9GszidQQ5COFNIsGvA87dftDdu"
        "GFx/AC5YOSqAkTBJb3VD0HQXnBmtZUFkZKeDg==\",\"signer_kid\":\"56475aa75463474c0285df5dbf2bcab7\"},\"type\":"
        "\"request\",\"v\":1}";
    uint8_t seed[32], key[32];
    for (uint8_t i = 0; i < 32; i++)
        seed[i] = i;
    for (uint8_t i = 0; i < ID; i++)
        asked.txn[i] = asked.nonce[i] = i;
    crypto_sign_seed_keypair(key, me.seed_and_key, seed);
    kid_of(key, own_kid);
    strcpy(me.dbd_id, "dbd-1");
    strcpy(me.gate_id, "gate-1");
    asked.issued_at_ms = UINT64_C(1700000000000);
    asked.ttl_ms = 15000;
    write_request();
    bool good = out.size == sizeof REQUEST - 1 && memcmp(out.message + PREFIX, REQUEST, out.size) == 0;
    printf("%s request\n", good ? "good" : "BAD ");
    good &= same_frame(RST, 0, 0, TAGS, 8, "030104010101010e010102030405060708853cfc4800");
    good &= same_frame(RSTACK, 0, 0, TAGS, 16, "0301050101010116010102030405060708111213141516171894b8ddf600");
    good &= same_frame(PING, 1, 0, "", 0, "030106020101010601803ff3eb00");
    good &= same_frame(ACK, 1, 5, "", 0, "03010202010205060172bb151300");
    good &= same_frame(DATA, 0x11, 0, "{\"v\":1}", 7, "030101021101010d017b2276223a317db187a03700");
    good &= zero_after_given_up();
    return good;
}

/* "F <hex>": is this, without its 0x00, a frame? "J <hex>": what does an envelope of these bytes deserve? */
static void judge_lines(void)
{
    static char line[4 + 2 * (MAX_MESSAGE + 2)];
    while (fgets(line, sizeof line, stdin) != NULL) {
        size_t size, which;
        bool frame = line[0] == 'F';
        uint8_t *to = frame ? in.frame : in.message + PREFIX;
        if (strlen(line) < 3 || sodium_hex2bin(to, frame ? sizeof in.frame : MAX_MESSAGE, line + 2, strcspn(line + 2, "\n"),
                                               NULL, &size, NULL) != 0) {
            puts(frame ? "dropped" : "malformed");
        } else if (frame) {
            puts(decode_frame(to, size) >= 0 ? "frame" : "dropped");
        } else {
            const char *wrong = judge((struct json){to, to + size}, &which);
            puts(wrong != NULL ? wrong : TYPES[which].name);
        }
        fflush(stdout);
    }
}

static void sizes(void)
{
    printf("in %zu\nout %zu\ncable %zu\nhandshake %zu\nowed %zu\nrequest %zu\nmemory %zu\nsettings %zu\ntotal %zu\n",
           sizeof in, sizeof out, sizeof cable, sizeof shake, sizeof due, sizeof asked, sizeof memory, sizeof me,
           sizeof in + sizeof out + sizeof cable + sizeof shake + sizeof due + sizeof asked + sizeof memory + sizeof me);
}

static bool named(const char *given, char *to)
{
    size_t size = strlen(given);
    if (size == 0 || size > NAME || strspn(given, NAMES) != size)
        return false;
    memcpy(to, given, size + 1);
    return true;
}

static bool read_key(const char *path)
{
    uint8_t seed[33], public_key[32];
    int fd = open(path, O_RDONLY);
    ssize_t got = fd >= 0 ? read(fd, seed, sizeof seed) : -1;
    if (fd >= 0)
        close(fd);
    return got == 32 && crypto_sign_seed_keypair(public_key, me.seed_and_key, seed) == 0;
}

static int usage(const char *what)
{
    fprintf(stderr,
            "%s\nvalidator --port PATH --device-pub-b64 KEY --key-file FILE --state FILE --dbd-id ID --gate-id ID\n"
            "          [--ttl-ms N] [--passages N] [--passage-sensor] [--manual] [--forgot]\n"
            "validator --self-test | --judge | --sizes\n"
            "FILE of the key: 32 raw bytes. While it runs, letters on standard input: a asks for a hand, c cancels,\n"
            "r resets the link, q ends. Without --manual it asks by itself. With --forgot, for a box that takes the\n"
            "place of another and has not its state, it says `unknown` about no verdict.\n",
            what);
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option OPTIONS[] = {
        {"port", required_argument, NULL, 'p'},     {"device-pub-b64", required_argument, NULL, 'd'},
        {"key-file", required_argument, NULL, 'k'}, {"state", required_argument, NULL, 's'},
        {"dbd-id", required_argument, NULL, 'b'},   {"gate-id", required_argument, NULL, 'g'},
        {"ttl-ms", required_argument, NULL, 't'},   {"passages", required_argument, NULL, 'n'},
        {"passage-sensor", no_argument, NULL, 'P'}, {"manual", no_argument, NULL, 'm'},
        {"self-test", no_argument, NULL, 'T'},      {"judge", no_argument, NULL, 'J'},
        {"sizes", no_argument, NULL, 'S'},          {"forgot", no_argument, NULL, 'f'},
        {NULL, 0, NULL, 0}};
    const char *port = NULL;
    bool device = false, key = false, forgot = false;
    size_t size;
    if (sodium_init() < 0)
        return usage("libsodium does not start");
    for (int letter; (letter = getopt_long(argc, argv, "", OPTIONS, NULL)) != -1;) {
        switch (letter) {
        case 'p': port = optarg; break;
        case 'd':
            device = sodium_base642bin(me.device_key, 32, optarg, strlen(optarg), NULL, &size, NULL,
                                       sodium_base64_VARIANT_ORIGINAL) == 0 && size == 32;
            break;
        case 'k': key = read_key(optarg); break;
        case 's': state_path = optarg; break;
        case 'b': if (!named(optarg, me.dbd_id)) return usage("--dbd-id has 1 to 64 of A-Za-z0-9._:-"); break;
        case 'g': if (!named(optarg, me.gate_id)) return usage("--gate-id has 1 to 64 of A-Za-z0-9._:-"); break;
        case 't': ttl_ms = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 'n': passages_left = strtoul(optarg, NULL, 10); count_passages = true; break;
        case 'P': me.passage_sensor = true; break;
        case 'm': manual = true; break;
        case 'f': forgot = true; break;
        case 'T': return golden() ? 0 : 1;
        case 'J': judge_lines(); return 0;
        case 'S': sizes(); return 0;
        default: return usage("");
        }
    }
    if (port == NULL || state_path == NULL || !device || !key || !me.dbd_id[0] || !me.gate_id[0])
        return usage("an option is missing, or a key is none");
    if (ttl_ms < 500 || ttl_ms > 60000)
        return usage("--ttl-ms is 500 to 60000");
    if (!load_state())
        return usage("the state file is damaged or of another version: restore it, or give this validator another "
                     "key and begin without it and with --forgot; one that forgets may answer twice");
    memory.forgot = memory.forgot || forgot;
    if (!validator_begin())
        return usage("the device's key is no usable key");
    if (forgot && !port_save(&memory)) /* so that it is said once */
        return usage("the state file cannot be written");
    signal(SIGTERM, interrupt);
    signal(SIGINT, interrupt);
    signal(SIGPIPE, SIG_IGN);
    serve(port);
    return 0;
}
