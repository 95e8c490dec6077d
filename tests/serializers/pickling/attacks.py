"""Pickles that were written to do harm, as data: each is refused, and nothing of it happens."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from types import MappingProxyType

from redpoll.serializers.pickling.names import MODULE
from tests.serializers.pickling.streams import body, call, data, named, number, ours, raw, some, text

COMMAND = text("exit 66")
CODE = text("1/0")

# Callables that run code, reach others, or act, and what they would be called with.
_CALLS: Mapping[str, tuple[bytes, ...]] = MappingProxyType(
    {
        "os.system": (COMMAND,),
        "posix.system": (COMMAND,),
        "nt.system": (COMMAND,),
        "os.popen": (COMMAND,),
        "os.execv": (text("/bin/false"), b"]"),
        "os._exit": (number(66),),
        "os.remove": (text("/nowhere"),),
        "subprocess.Popen": (COMMAND,),
        "subprocess.check_output": (COMMAND,),
        "subprocess.getoutput": (COMMAND,),
        "_posixsubprocess.fork_exec": (),
        "pty.spawn": (COMMAND,),
        "builtins.eval": (CODE,),
        "builtins.exec": (CODE,),
        "builtins.compile": (CODE, text("x"), text("exec")),
        "builtins.getattr": (text("x"), text("__class__")),
        "builtins.setattr": (text("x"), text("y"), text("z")),
        "builtins.__import__": (text("antigravity"),),
        "builtins.open": (text("/etc/passwd"),),
        "builtins.input": (),
        "builtins.breakpoint": (),
        "builtins.globals": (),
        "builtins.vars": (),
        "builtins.type": (text("X"), b")", b"}"),
        "builtins.object": (),
        "builtins.map": (b"]",),
        "builtins.bytes": (number(2**40),),
        "builtins.bytearray": (number(2**40),),
        "builtins.list": (b")",),
        "builtins.range": (number(2**40),),
        "builtins.slice": (number(0),),
        "builtins.super": (),
        "builtins.property": (),
        "builtins.exit": (),
        "builtins.memoryview": (data(b"x"),),
        "operator.attrgetter": (text("__class__.__base__"),),
        "operator.methodcaller": (text("format"), text("x")),
        "operator.itemgetter": (number(0),),
        "functools.partial": (b"N",),
        "functools.reduce": (b"N", b"]"),
        "itertools.repeat": (b"N",),
        "importlib.import_module": (text("antigravity"),),
        "importlib.__import__": (text("antigravity"),),
        "runpy.run_path": (text("/nowhere"),),
        "runpy.run_module": (text("antigravity"),),
        "pkgutil.resolve_name": (text("os:system"),),
        "pydoc.locate": (text("os.system"),),
        "pydoc.pipepager": (text("x"), COMMAND),
        "timeit.timeit": (CODE,),
        "cProfile.run": (CODE,),
        "profile.run": (CODE,),
        "pdb.run": (CODE,),
        "bdb.Bdb": (),
        "trace.Trace": (),
        "doctest.debug_script": (CODE,),
        "code.interact": (),
        "code.InteractiveInterpreter": (),
        "types.CodeType": (),
        "types.FunctionType": (),
        "marshal.loads": (data(b"N"),),
        "pickle.loads": (data(pickle.dumps(1)),),
        "_pickle.loads": (data(pickle.dumps(1)),),
        "shelve.open": (text("/nowhere"),),
        "copyreg._reconstructor": (),
        "copyreg.__newobj__": (),
        "copyreg.add_extension": (text("os"), text("system"), number(1)),
        "ctypes.CDLL": (b"N",),
        "ctypes.string_at": (number(0),),
        "_ctypes.dlopen": (text("x"), number(1)),
        "socket.socket": (),
        "socket.create_connection": (),
        "urllib.request.urlopen": (text("http://127.0.0.1:1"),),
        "webbrowser.open": (text("http://127.0.0.1:1"),),
        "smtplib.SMTP": (text("127.0.0.1"),),
        "shutil.rmtree": (text("/nowhere"),),
        "tempfile.mkdtemp": (),
        "pathlib.Path": (text("/"),),
        "io.FileIO": (text("/etc/passwd"),),
        "_io.FileIO": (text("/etc/passwd"),),
        "logging.FileHandler": (text("/nowhere/log"),),
        "logging.config.dictConfig": (b"}",),
        "multiprocessing.Process": (),
        "threading.Thread": (),
        "asyncio.run": (),
        "asyncio.unix_events._UnixSubprocessTransport._start": (),
        "sys.exit": (),
        "sys.setrecursionlimit": (number(10),),
        "gc.get_objects": (),
        "inspect.getsource": (),
        "site.main": (),
        "signal.raise_signal": (number(9),),
        "types.SimpleNamespace": (),
        "weakref.finalize": (),
        "datetime.datetime": (data(b"\xff" * 10),),
        "uuid._load_system_functions": (),
        "zoneinfo.ZoneInfo": (text("../../etc/passwd"),),
        "numpy.load": (text("/etc/passwd"),),
        "numpy.fromfile": (text("/etc/passwd"),),
        "numpy.memmap": (text("/etc/passwd"),),
        "numpy.testing._private.utils.runstring": (CODE, b"}"),
        "numpy.core.multiarray._reconstruct": (),
        "numpy._core.multiarray._reconstruct": (),
        "numpy._core.numeric._frombuffer": (),
        "numpy.ndarray": (some(number(2**20)),),
        "numpy.dtype": (text("O8"),),
        "redpoll.run": (),
        "redpoll.Node": (),
        "redpoll.serializers.pickling.reading.read": (),
        "tests.serializers.pickling.attacks.body": (),
    }
)

# Names with dots in them go from what a module holds to what that holds.
_DOTTED = (
    ("uuid", "os.system"),
    ("uuid", "UUID.__init__.__globals__"),
    ("uuid", "UUID.__init__.__globals__.get"),
    ("uuid", "UUID.__class__"),
    ("uuid", "UUID.__subclasses__"),
    ("datetime", "sys.modules"),
    ("collections", "_sys.modules"),
    ("collections", "abc.sys.modules.get"),
    ("decimal", "Decimal.from_float"),
    ("zoneinfo", "ZoneInfo._unpickle"),
    ("builtins", "str.format"),
    ("builtins", "dict.fromkeys"),
    (MODULE, "named.__globals__"),
    (MODULE, "_NAMES.clear"),
    (MODULE, "datetime.__class__"),
    (MODULE, "__builtins__"),
    (MODULE, "__getattr__"),
    (MODULE, "Name"),
    (f"{MODULE}.datetime", "__class__"),
)

_NUMBERS = some(*[number(each) for each in (2024, 1, 2)])
_UUID = ours("UUID", number(5))


def _bomb(levels: int, width: int) -> bytes:
    """A tuple that is repeated many times in the next one, and so on, as the key of a dict."""
    made = b")" + b"\x94"
    for level in range(levels):
        made += (
            b"(" + b"j" + level.to_bytes(4, "little") + (b"j" + level.to_bytes(4, "little")) * width + b"t" + b"\x94"
        )
    return b"}" + made + b"N" + b"s"


_OPCODES: Mapping[str, bytes] = MappingProxyType(
    {
        "the old text form": raw(b"cos\nsystem\n(S'exit 66'\ntR."),
        "the same behind our first opcode": raw(b"\x80\x05cos\nsystem\n(S'exit 66'\ntR."),
        "INST": body(b"(S'exit 66'\nios\nsystem\n"),
        "OBJ": body(b"(" + named("os", "system") + COMMAND + b"o"),
        "BUILD on a value": body(_UUID, b"}", text("int"), b"N", b"s", b"b"),
        "BUILD on a name": body(named(MODULE, "UUID"), b"}", b"b"),
        "BUILD on a dtype": body(ours("numpy_dtype", text("|V8")), b"(K\x03tb"),
        "EXT1": body(b"\x82\x01"),
        "EXT2": body(b"\x83\x01\x00"),
        "EXT4": body(b"\x84\x01\x00\x00\x00"),
        "PUT far away, which takes gigabytes": body(b"N", b"r\xff\xff\xff\x7f"),
        "BINPUT": body(b"N", b"q\x00"),
        "PUT as text": body(b"N", b"p2147483647\n"),
        "GET as text": body(b"N", b"\x94", b"g0\n"),
        "a number as text": body(b"I1\n"),
        "a long number as text": body(b"L" + b"9" * 100_000 + b"L\n"),
        "a string to be evaluated": body(b"S'x'\n"),
        "PERSID": body(b"Pid\n"),
        "BINPERSID, and nobody knows ids": body(text("id"), b"Q"),
        "DUP": body(b"N2"),
        "another protocol": raw(b"\x80\x04N."),
        "a protocol of the future": raw(b"\x80\xffN."),
        "two protocols": body(b"\x80\x05", b"N"),
        "nothing": raw(b""),
        "no value": body(),
        "no end": raw(b"\x80\x05N"),
        "a second end": raw(b"\x80\x05N.N."),
        "bytes of an exbibyte": raw(b"\x80\x05\x8e" + (2**60).to_bytes(8, "little") + b"x."),
        "bytes of 16 exbibytes": raw(b"\x80\x05\x8e" + b"\xff" * 8 + b"x."),
        "a bytearray of a tebibyte": raw(b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"x."),
        "a text of 4 GiB": raw(b"\x80\x05X\xff\xff\xff\xffx."),
        "a number of -1 bytes": raw(b"\x80\x05\x8b\xff\xff\xff\xffx."),
        "a frame of an exbibyte": raw(b"\x80\x05\x95" + (2**60).to_bytes(8, "little") + b"N."),
        "a frame that ends within an argument, behind which other opcodes are read": raw(
            b"\x80\x05" + b"\x95" + (3).to_bytes(8, "little") + b"NX\x10\x01\x00\x00\x00" + b"N" * 16 + b"."
        ),
        "frames in frames": raw(b"\x80\x05\x95" + (11).to_bytes(8, "little") + b"\x95" + bytes(8) + b"N."),
        "text that is no text": body(b"\x8c\x01\xff"),
        "nothing to call": body(b"R"),
        "nothing to remember": body(b"\x94"),
        "what was not remembered": body(b"h\x05"),
        "no mark": body(b"t"),
        "calling a list": body(b"]", b")", b"R"),
        "calling a text": body(COMMAND, b")", b"R"),
        "calling a value": body(_UUID, b")", b"R"),
        "NEWOBJ of a name": body(named(MODULE, "UUID"), b")", b"\x81"),
        "NEWOBJ of a value": body(_UUID, b")", b"\x81"),
        "NEWOBJ_EX of a name": body(named(MODULE, "UUID"), b")", b"}", b"\x92"),
        "a name of numbers": body(b"K\x01K\x02\x93"),
        "a part that is not there": body(b"\x97"),
        "a part that nobody takes": body(b"N", parts=[b"x"]),
        "a tuple that is in itself two to the fiftieth times": body(_bomb(50, 1)),
        "a wide tuple that is in itself as often": body(_bomb(3, 2000)),
        "tuples in tuples until the stack overflows": body(b"}", b")" + b"\x85" * 500_000, b"N", b"s"),
        "the same in a set": body(b"\x8f(", b")" + b"\x85" * 500_000, b"\x90"),
        "one wide tuple as every key": body(b"(" + b"K\x01" * 9_000 + b"t\x94", b"}(" + b"h\x00N" * 20_000 + b"u"),
        "one large number as every key": body(
            b"}\x8b" + (100_000).to_bytes(4, "little") + b"\x7f" * 100_000 + b"\x94Ns(" + b"h\x00N" * 9000 + b"u"
        ),
        "tuples in tuples, for a program that hashes them": body(b")" + b"\x85" * 20_000),
        "the same by the memo": body(
            b")\x94" + b"".join(b"j%b\x85\x94" % level.to_bytes(4, "little") for level in range(12_000))
        ),
        "a name of ours that is not called": body(named(MODULE, "Decimal")),
        "the setter of states": body(named(MODULE, "state")),
        "a name of ours in a list": body(b"]", named(MODULE, "deque"), b"a"),
        "a name of ours below the value": body(named(MODULE, "deque"), b"N"),
        "a list put into itself, doubled": body(
            b"](K\x01e\x94", ours("slice", number(0), number(0)), b"\x94", b"0", b"h\x00h\x01h\x00s"
        ),
    }
)


def _chain(name: str, arguments: bytes, before: bytes, behind: bytes, levels: int = 3_000) -> bytes:
    """Put what this name makes into one another."""
    return named(MODULE, name) + b"\x940" + arguments + b"\x940" + before * levels + b"N" + behind * levels


_VALUES: Mapping[str, bytes] = MappingProxyType(
    {
        "a datetime's packed form": body(ours("datetime", data(b"\xff" * 10))),
        "a date of texts": body(ours("date", text("1"), text("1"), text("1"))),
        "a date of no day": body(ours("date", number(2024), number(13), number(99))),
        "a date of too few": body(ours("date", number(2024))),
        "a zone above its folder": body(ours("ZoneInfo", text("../../etc/passwd"))),
        "a zone of the root": body(ours("ZoneInfo", text("/etc/passwd"))),
        "a zone with a null": body(ours("ZoneInfo", text("Europe\0"))),
        "a defaultdict that evaluates": body(ours("defaultdict", text("eval"))),
        "a defaultdict that calls a name": body(ours("defaultdict", named(MODULE, "UUID"))),
        "a deque of a list": body(ours("deque", b"](K\x01e")),
        "a Counter of a list": body(ours("Counter", b"](K\x01e")),
        "an array of the wrong kind": body(ours("array", text("q"), number(4), b"\x88", data(bytes(8)))),
        "an array of no kind": body(ours("array", text("Z"), number(4), b"\x88", data(bytes(8)))),
        "the same bytes made into arrays again and again": body(
            data(bytes(10_000)) + b"\x94", *[ours("array", text("b"), number(1), b"\x88", b"h\x00") for _ in range(99)]
        ),
        "a fraction that takes hours": body(
            ours("Fraction", *[b"\x8b" + (10**6).to_bytes(4, "little") + b"\x7f" * 10**6] * 2)
        ),
        "a fraction by nothing": body(ours("Fraction", number(1), number(0))),
        "the state of a value": body(
            call(named(MODULE, "state"), _UUID, b"}" + text("int") + b"N" + b"s"),
        ),
        "the state of a name": body(call(named(MODULE, "state"), named(MODULE, "UUID"), b"}")),
        "a view of a text": body(ours("memoryview", text("x"))),
        "deques in deques": body(_chain("deque", b"N\x85", b"h\x00h\x01R", b"a")),
        "defaultdicts in defaultdicts": body(_chain("defaultdict", b"N\x85", b"h\x00h\x01RK\x00", b"s")),
        "deques in deques, and an end that fails": body(_chain("deque", b"N\x85", b"h\x00h\x01R", b"a"), b"K\x05R"),
    }
)

_PLAIN = text("<f8")


def _record(count: int, kind: bytes, step: int, size: int) -> bytes:
    """Describe a dtype of so many fields of one kind."""
    names, offsets = [text(f"f{index}") for index in range(count)], [number(index * step) for index in range(count)]
    return some(
        text("record"), some(*names), some(*[kind] * count), some(*offsets), number(size), some(*[b"N"] * count)
    )


def _records_of_records(levels: int) -> bytes:
    """Describe a dtype that has the same one in it ten times, and so on."""
    made = text("|V0") + b"\x94"
    for level in range(levels):
        made += _record(10, b"h" + bytes((level,)), 0, 0) + b"\x94"
    return made


#: These need NumPy.
ARRAYS: Mapping[str, bytes] = MappingProxyType(
    {
        name: body(ours(kind, *arguments))
        for name, (kind, arguments) in {
            "an array of pointers": (
                "numpy_ndarray",
                (
                    text("|O"),
                    some(number(1)),
                    text("C"),
                    data(b"\x41" * 8),
                ),
            ),
            "an array of pointers in a record": (
                "numpy_ndarray",
                (
                    some(text("record"), some(text("a")), some(text("|O8")), some(number(0)), number(8), some(b"N")),
                    some(number(1)),
                    text("C"),
                    data(b"\x41" * 8),
                ),
            ),
            "a record with a field outside": (
                "numpy_ndarray",
                (
                    some(text("record"), some(text("a")), some(_PLAIN), some(number(1000)), number(8), some(b"N")),
                    some(number(1)),
                    text("C"),
                    data(bytes(8)),
                ),
            ),
            "a record with a field so far outside that its end overflows": (
                "numpy_dtype",
                (some(text("record"), some(text("a")), some(_PLAIN), some(number(2**31 - 4)), number(8), some(b"N")),),
            ),
            "times in multiples of no second": ("numpy_dtype", (text("<m8[0s]"),)),
            "a record with a field before it": (
                "numpy_dtype",
                (some(text("record"), some(text("a")), some(_PLAIN), some(number(-8)), number(8), some(b"N")),),
            ),
            "dtypes in dtypes": ("numpy_dtype", ((b"(" + text("part")) * 40 + _PLAIN + (some(number(1)) + b"t") * 40,)),
            "a dtype by a list of texts": ("numpy_dtype", (text("f8,O"),)),
            "a dtype of Python": ("numpy_dtype", (text("object"),)),
            "an array of too few bytes": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    some(number(2)),
                    text("C"),
                    data(bytes(8)),
                ),
            ),
            "an array of too many": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    some(number(1)),
                    text("C"),
                    data(bytes(16)),
                ),
            ),
            "an array of an exbibyte": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    some(number(2**57)),
                    text("C"),
                    data(b""),
                ),
            ),
            "a shape that runs over": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    some(number(2**61), number(2**61), number(8)),
                    text("C"),
                    data(b""),
                ),
            ),
            "less than nothing": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    some(number(-1)),
                    text("C"),
                    data(bytes(8)),
                ),
            ),
            "no shape": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    number(1),
                    text("C"),
                    data(bytes(8)),
                ),
            ),
            "a shape of texts": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    some(text("1")),
                    text("C"),
                    data(bytes(8)),
                ),
            ),
            "70 axes": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    some(*[number(1)] * 70),
                    text("C"),
                    data(bytes(8)),
                ),
            ),
            "no order": (
                "numpy_ndarray",
                (
                    _PLAIN,
                    some(number(1)),
                    text("Z"),
                    data(bytes(8)),
                ),
            ),
            "a tebi of nothings": (
                "numpy_ndarray",
                (
                    text("|V0"),
                    some(number(2**40)),
                    text("C"),
                    data(b""),
                ),
            ),
            "text that is no Unicode": (
                "numpy_ndarray",
                (
                    text("<U1"),
                    some(number(1)),
                    text("C"),
                    data(b"\xff" * 4),
                ),
            ),
            "objects that are not there": (
                "numpy_objects",
                (
                    some(number(2**40)),
                    b"]",
                ),
            ),
            "a scalar of a record": (
                "numpy_scalar",
                (
                    some(text("record"), some(text("a")), some(_PLAIN), some(number(0)), number(8), some(b"N")),
                    data(bytes(8)),
                ),
            ),
            "a scalar of more bytes": (
                "numpy_scalar",
                (
                    _PLAIN,
                    data(bytes(16)),
                ),
            ),
        }.items()
    }
) | {
    "a dtype that is in itself ten to the sixteenth times": body(
        b"](", _records_of_records(15), ours("numpy_dtype", b"h\x0f"), b"e"
    ),
    "a wide dtype again and again": body(
        _record(500, text("|i1"), 1, 500) + b"\x94", b"](", ours("numpy_dtype", b"h\x00") * 700, b"e"
    ),
    "fields of text that lie over one another": body(
        ours("numpy_ndarray", _record(200, text("<U100"), 4, 1200), some(number(100)), text("C"), data(bytes(120_000)))
    ),
    "text that is no Unicode once the array is there": body(
        b"\x96" + (4).to_bytes(8, "little") + bytes(4) + b"\x94",
        b"(",
        ours("numpy_ndarray", text("<U1"), some(number(1)), text("C"), b"h\x00"),
        b"h\x00K\x03K\xff" + b"s" + b"t",
    ),
    "arrays of objects in one another": body(_chain("numpy_objects", b"K\x01\x85", b"h\x00h\x01]", b"a\x86R")),
    "arrays of objects in one another, compared": body(
        _chain("numpy_objects", b"K\x01\x85", b"h\x00h\x01]", b"a\x86R"), b"\x85\x94", ours("numpy_dtype", b"h\x02")
    ),
    "an array of objects in itself": body(b"]\x94", ours("numpy_objects", some(number(1)), b"]h\x00a"), b"a"),
    "putting a list into an array again and again": body(
        ours("numpy_ndarray", _PLAIN, some(number(1)), text("C"), b"\x96" + (8).to_bytes(8, "little") + bytes(8)),
        b"K\x00K\x01s",
    ),
}

#: What is wrong to the bytes. None of them does anything, and each is a DecodeError.
ATTACKS: Mapping[str, bytes] = MappingProxyType(
    {name: body(call(named(*name.rpartition(".")[::2]), *arguments)) for name, arguments in _CALLS.items()}
    | {f"{module}:{name}": body(named(module, name), b")", b"R") for module, name in _DOTTED}
    | dict(_OPCODES)
    | dict(_VALUES)
)
