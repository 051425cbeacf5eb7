//! Writer of databases in MaxMind's format, for tests: trees with records of 24, 28 or 32 bits, and aliases of IPv4.
//! Shares no code with the reader.

use ipnet::IpNet;

/// A value of a record.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    U16(u16),
    U32(u32),
    U64(u64),
    Map(Vec<(&'static str, Value)>),
    List(Vec<Value>),
}

/// Returns a text as a value.
pub(crate) fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

impl Value {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(text) => {
                head(2, text.len(), out);
                out.extend(text.as_bytes());
            }
            Self::U16(number) => number_of(5, &number.to_be_bytes(), out),
            Self::U32(number) => number_of(6, &number.to_be_bytes(), out),
            Self::U64(number) => number_of(9, &number.to_be_bytes(), out),
            Self::Map(of) => {
                head(7, of.len(), out);
                for (key, value) in of {
                    text(key).write(out);
                    value.write(out);
                }
            }
            Self::List(of) => {
                head(11, of.len(), out);
                of.iter().for_each(|value| value.write(out));
            }
        }
    }
}

/// Writes a number without its leading zeros.
fn number_of(kind: u8, bytes: &[u8], out: &mut Vec<u8>) {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    head(kind, bytes.len() - zeros, out);
    out.extend(&bytes[zeros..]);
}

fn head(kind: u8, len: usize, out: &mut Vec<u8>) {
    let (short, more) = match len {
        0..29 => (u8::try_from(len).unwrap(), Vec::new()),
        29..285 => (29, vec![u8::try_from(len - 29).unwrap()]),
        _ => (30, u16::try_from(len - 285).unwrap().to_be_bytes().to_vec()),
    };
    if kind > 7 {
        out.extend([short, kind - 7]);
    } else {
        out.push(kind << 5 | short);
    }
    out.extend(more);
}

/// A tree, or a part of one.
#[derive(Clone, Debug)]
enum Node {
    Empty,
    Record(usize),
    Inner(Box<[Node; 2]>),
    /// A repetition of the part for IPv4.
    Alias,
}

impl Node {
    fn put(&mut self, bits: u128, len: u8, what: Self) {
        if len == 0 {
            *self = what;
            return;
        }
        if !matches!(self, Self::Inner(_)) {
            *self = Self::Inner(Box::new([self.clone(), self.clone()]));
        }
        if let Self::Inner(children) = self {
            children[usize::from(bits >> 127 == 1)].put(bits << 1, len - 1, what);
        }
    }

    fn count(&self) -> u32 {
        match self {
            Self::Inner(children) => 1 + children.iter().map(Self::count).sum::<u32>(),
            Self::Empty | Self::Record(_) | Self::Alias => 0,
        }
    }
}

/// Format of a database.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Bits of a record of the tree.
    pub(crate) record_size: u16,
    /// IP version: 4 or 6.
    pub(crate) ip_version: u16,
    /// True if IPv4 is repeated as mapped, Teredo, 6to4 and NAT64.
    pub(crate) aliases: bool,
}

/// Returns a database of these networks, of which longer prefixes override shorter ones. A database for IPv4 omits IPv6
/// networks.
pub(crate) fn database(kind: &str, form: Form, networks: &[(IpNet, Value)]) -> Vec<u8> {
    let mut tree = Node::Empty;
    let mut order: Vec<usize> = (0..networks.len()).collect();
    order.sort_by_key(|at| networks[*at].0.addr().is_ipv4() as u8 * 96 + networks[*at].0.prefix_len());
    for at in order {
        match (networks[at].0, form.ip_version) {
            (IpNet::V4(net), 4) => {
                tree.put(u128::from(net.network().to_bits()) << 96, net.prefix_len(), Node::Record(at));
            }
            (IpNet::V4(net), _) => {
                tree.put(u128::from(net.network().to_bits()), 96 + net.prefix_len(), Node::Record(at));
            }
            (IpNet::V6(net), 6) => tree.put(net.network().to_bits(), net.prefix_len(), Node::Record(at)),
            (IpNet::V6(_), _) => {}
        }
    }
    if form.aliases {
        for (bits, len) in [("::ffff:0:0", 96), ("2001::", 32), ("2002::", 16), ("64:ff9b::", 96)] {
            let bits: std::net::Ipv6Addr = bits.parse().unwrap();
            tree.put(bits.to_bits(), len, Node::Alias);
        }
    }
    // A tree has at least one node.
    if tree.count() == 0 {
        tree = Node::Inner(Box::new([tree.clone(), tree]));
    }
    let (mut data, mut places) = (Vec::new(), Vec::new());
    for (_, value) in networks {
        places.push(data.len());
        value.write(&mut data);
    }
    let mut writer = Writer { nodes: Vec::new(), count: tree.count(), places, ipv4: None };
    writer.ipv4 = writer.find(&tree);
    writer.node(&tree);
    let nodes: Vec<[u32; 2]> = writer.nodes.clone();
    raw(kind, form, &nodes, &data)
}

struct Writer {
    nodes: Vec<[u32; 2]>,
    count: u32,
    places: Vec<usize>,
    /// Number that aliases point to.
    ipv4: Option<u32>,
}

impl Writer {
    /// Returns the number that the part for IPv4 will get.
    fn find(&self, tree: &Node) -> Option<u32> {
        let mut node = tree;
        let mut number = 0;
        for _ in 0..96 {
            match node {
                // The left child comes right after its node.
                Node::Inner(children) => (node, number) = (&children[0], number + 1),
                Node::Empty | Node::Record(_) | Node::Alias => break,
            }
        }
        Some(match node {
            Node::Inner(_) => number,
            Node::Record(at) => self.record(*at),
            Node::Empty | Node::Alias => self.count,
        })
    }

    fn record(&self, at: usize) -> u32 {
        self.count + 16 + u32::try_from(self.places[at]).unwrap()
    }

    /// Writes a node and all below it, the left child first. Returns the node's number.
    fn node(&mut self, node: &Node) -> u32 {
        match node {
            Node::Empty => self.count,
            Node::Record(at) => self.record(*at),
            Node::Alias => self.ipv4.unwrap_or(self.count),
            Node::Inner(children) => {
                let at = self.nodes.len();
                self.nodes.push([0; 2]);
                let [left, right] = &**children;
                self.nodes[at] = [self.node(left), self.node(right)];
                u32::try_from(at).unwrap()
            }
        }
    }
}

/// Returns a database of these nodes, valid or not, and of these data.
pub(crate) fn raw(kind: &str, form: Form, nodes: &[[u32; 2]], data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for [left, right] in nodes.iter().map(|node| node.map(u32::to_be_bytes)) {
        match form.record_size {
            24 => out.extend([&left[1..], &right[1..]].concat()),
            28 => {
                out.extend(&left[1..]);
                out.push(left[0] << 4 | right[0] & 15);
                out.extend(&right[1..]);
            }
            _ => out.extend([left, right].concat()),
        }
    }
    out.extend([0; 16]);
    out.extend(data);
    out.extend(b"\xab\xcd\xefMaxMind.com");
    let about = Value::Map(vec![
        ("binary_format_major_version", Value::U16(2)),
        ("binary_format_minor_version", Value::U16(0)),
        // 2026-11-01
        ("build_epoch", Value::U64(1_793_491_200)),
        ("database_type", text(kind)),
        ("description", Value::Map(vec![("en", text("made by a test"))])),
        ("ip_version", Value::U16(form.ip_version)),
        ("languages", Value::List(vec![text("en")])),
        ("node_count", Value::U32(u32::try_from(nodes.len()).unwrap())),
        ("record_size", Value::U16(form.record_size)),
    ]);
    about.write(&mut out);
    out
}

/// A record of MaxMind's databases of autonomous systems.
pub(crate) fn asn(number: u32) -> Value {
    Value::Map(vec![
        ("autonomous_system_number", Value::U32(number)),
        ("autonomous_system_organization", text("Example Ltd.")),
    ])
}

/// A record of MaxMind's databases of countries.
pub(crate) fn country(letters: &str) -> Value {
    let continent = Value::Map(vec![("code", text("EU")), ("geoname_id", Value::U32(6_255_148))]);
    let country = Value::Map(vec![("iso_code", text(letters)), ("is_in_european_union", Value::U16(1))]);
    Value::Map(vec![("continent", continent), ("country", country)])
}
