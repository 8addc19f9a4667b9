//! The form of an action in the journal: one JSON object that begins with its `kind`, followed by its fields.
//!
//! ```text
//! {"kind":"renew","lease":7,"at":90,"until":390,"idle":false}
//! ```
//! [`Action`] names the groups, and this form does not: a kind is a variant of one of them, and its name is unique among
//! all. So nothing here names a variant: serde's derive of each group says which kinds it has.

use super::Action;
use crate::model::facts::{DaemonAction, GpuAction, LeaseAction, TenantAction, TokenAction, UnleasedAction};
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::ser::{Impossible, SerializeStruct, SerializeStructVariant};
use serde::{Deserialize, Deserializer, Serialize, Serializer, forward_to_deserialize_any};
use std::fmt::{self, Display};
use std::marker::PhantomData;

/// The first field of each action.
const KIND: &str = "kind";

// ---- writing ---------------------------------------------------------------

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.serialize_variant(WithKind(serializer))
    }
}

impl Action {
    /// Its kind, as in its JSON.
    pub fn kind(&self) -> &'static str {
        // An action is a variant with fields: that is all this serializer takes.
        self.serialize_variant(KindOnly).unwrap_or_default()
    }

    fn serialize_variant<K: KindSerializer>(&self, to: K) -> Result<K::Ok, K::Error> {
        let to = VariantSerializer(to);
        match self {
            Action::Daemon(action) => action.serialize(to),
            Action::Gpu(action) => action.serialize(to),
            Action::Tenant(action) => action.serialize(to),
            Action::Lease(action) => action.serialize(to),
            Action::Token(action) => action.serialize(to),
            Action::Unleased(action) => action.serialize(to),
        }
    }
}

/// The kind of an action of one group.
pub(super) fn kind_of(action: &impl Serialize) -> &'static str {
    action.serialize(VariantSerializer(KindOnly)).unwrap_or_default()
}

/// Takes the kind and the fields of an action.
trait KindSerializer {
    type Ok;
    type Error: serde::ser::Error;
    type Fields: SerializeStructVariant<Ok = Self::Ok, Error = Self::Error>;

    fn begin(self, group: &'static str, kind: &'static str, fields: usize) -> Result<Self::Fields, Self::Error>;
}

/// Writes an object of the kind and the fields.
struct WithKind<S>(S);

impl<S: Serializer> KindSerializer for WithKind<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type Fields = ObjectFields<S::SerializeStruct>;

    fn begin(self, group: &'static str, kind: &'static str, fields: usize) -> Result<Self::Fields, S::Error> {
        let mut object = self.0.serialize_struct(group, fields + 1)?;
        object.serialize_field(KIND, kind)?;
        Ok(ObjectFields(object))
    }
}

struct ObjectFields<T>(T);

impl<T: SerializeStruct> SerializeStructVariant for ObjectFields<T> {
    type Ok = T::Ok;
    type Error = T::Error;

    fn serialize_field<V: Serialize + ?Sized>(&mut self, name: &'static str, value: &V) -> Result<(), T::Error> {
        self.0.serialize_field(name, value)
    }

    fn skip_field(&mut self, name: &'static str) -> Result<(), T::Error> {
        self.0.skip_field(name)
    }

    fn end(self) -> Result<T::Ok, T::Error> {
        self.0.end()
    }
}

/// Returns the kind alone.
struct KindOnly;

impl KindSerializer for KindOnly {
    type Ok = &'static str;
    type Error = fmt::Error;
    type Fields = NoFields;

    fn begin(self, _: &'static str, kind: &'static str, _: usize) -> Result<NoFields, fmt::Error> {
        Ok(NoFields(kind))
    }
}

struct NoFields(&'static str);

impl SerializeStructVariant for NoFields {
    type Ok = &'static str;
    type Error = fmt::Error;

    fn serialize_field<V: Serialize + ?Sized>(&mut self, _: &'static str, _: &V) -> Result<(), fmt::Error> {
        Ok(())
    }

    fn end(self) -> Result<&'static str, fmt::Error> {
        Ok(self.0)
    }
}

/// Takes a variant with named fields, and refuses everything else.
struct VariantSerializer<K>(K);

fn not_an_action<T, E: serde::ser::Error>() -> Result<T, E> {
    Err(E::custom("an action is a variant with named fields"))
}

/// Methods of a serializer that refuse their value.
macro_rules! refuse {
    ($($method:ident($($value:ty),*) -> $ok:ty;)*) => {
        $(fn $method(self, $(_: $value),*) -> Result<$ok, K::Error> { not_an_action() })*
    };
}

impl<K: KindSerializer> Serializer for VariantSerializer<K> {
    type Ok = K::Ok;
    type Error = K::Error;
    type SerializeSeq = Impossible<K::Ok, K::Error>;
    type SerializeTuple = Impossible<K::Ok, K::Error>;
    type SerializeTupleStruct = Impossible<K::Ok, K::Error>;
    type SerializeTupleVariant = Impossible<K::Ok, K::Error>;
    type SerializeMap = Impossible<K::Ok, K::Error>;
    type SerializeStruct = Impossible<K::Ok, K::Error>;
    type SerializeStructVariant = K::Fields;

    fn serialize_struct_variant(
        self,
        group: &'static str,
        _: u32,
        kind: &'static str,
        fields: usize,
    ) -> Result<K::Fields, K::Error> {
        self.0.begin(group, kind, fields)
    }

    fn serialize_unit_variant(self, group: &'static str, _: u32, kind: &'static str) -> Result<K::Ok, K::Error> {
        self.0.begin(group, kind, 0)?.end()
    }

    refuse! {
        serialize_bool(bool) -> K::Ok;
        serialize_i8(i8) -> K::Ok;
        serialize_i16(i16) -> K::Ok;
        serialize_i32(i32) -> K::Ok;
        serialize_i64(i64) -> K::Ok;
        serialize_u8(u8) -> K::Ok;
        serialize_u16(u16) -> K::Ok;
        serialize_u32(u32) -> K::Ok;
        serialize_u64(u64) -> K::Ok;
        serialize_f32(f32) -> K::Ok;
        serialize_f64(f64) -> K::Ok;
        serialize_char(char) -> K::Ok;
        serialize_str(&str) -> K::Ok;
        serialize_bytes(&[u8]) -> K::Ok;
        serialize_none() -> K::Ok;
        serialize_unit() -> K::Ok;
        serialize_unit_struct(&'static str) -> K::Ok;
        serialize_seq(Option<usize>) -> Self::SerializeSeq;
        serialize_tuple(usize) -> Self::SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) -> Self::SerializeTupleVariant;
        serialize_map(Option<usize>) -> Self::SerializeMap;
        serialize_struct(&'static str, usize) -> Self::SerializeStruct;
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<K::Ok, K::Error> {
        not_an_action()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, _: &T) -> Result<K::Ok, K::Error> {
        not_an_action()
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<K::Ok, K::Error> {
        not_an_action()
    }
}

// ---- reading ---------------------------------------------------------------

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Action, D::Error> {
        deserializer.deserialize_map(ActionVisitor)
    }
}

struct ActionVisitor;

impl<'de> Visitor<'de> for ActionVisitor {
    type Value = Action;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an action, which begins with its `kind`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Action, A::Error> {
        if fields.next_key_seed(IsKind)? != Some(true) {
            return Err(de::Error::custom("an action begins with its `kind`"));
        }
        let kind: String = fields.next_value()?;
        let of = WithFields { kind: &kind, fields };
        // The groups with the most lines first.
        if has_kind::<LeaseAction>(&kind) {
            LeaseAction::deserialize(of).map(Action::Lease)
        } else if has_kind::<UnleasedAction>(&kind) {
            UnleasedAction::deserialize(of).map(Action::Unleased)
        } else if has_kind::<GpuAction>(&kind) {
            GpuAction::deserialize(of).map(Action::Gpu)
        } else if has_kind::<DaemonAction>(&kind) {
            DaemonAction::deserialize(of).map(Action::Daemon)
        } else if has_kind::<TenantAction>(&kind) {
            TenantAction::deserialize(of).map(Action::Tenant)
        } else if has_kind::<TokenAction>(&kind) {
            TokenAction::deserialize(of).map(Action::Token)
        } else {
            Err(de::Error::custom(format_args!("there is no action of the kind `{kind}`")))
        }
    }
}

/// Reads a field's name: true for [`KIND`].
struct IsKind;

impl<'de> DeserializeSeed<'de> for IsKind {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for IsKind {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == KIND)
    }
}

/// An action whose kind was read already: a variant of a group, as serde's derive wants it.
struct WithFields<'a, A> {
    kind: &'a str,
    fields: A,
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for WithFields<'_, A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_enum(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, 'a, A: MapAccess<'de>> de::EnumAccess<'de> for WithFields<'a, A> {
    type Error = A::Error;
    type Variant = Fields<A>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Fields<A>), A::Error> {
        let kind: StrDeserializer<'a, A::Error> = self.kind.into_deserializer();
        Ok((seed.deserialize(kind)?, Fields(self.fields)))
    }
}

struct Fields<A>(A);

impl<'de, A: MapAccess<'de>> de::VariantAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self.0)
    }

    fn unit_variant(mut self) -> Result<(), A::Error> {
        while self.0.next_entry::<de::IgnoredAny, de::IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, A::Error> {
        Err(de::Error::custom("an action is a variant with named fields"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, A::Error> {
        Err(de::Error::custom("an action is a variant with named fields"))
    }
}

/// True if a group has this kind.
fn has_kind<'de, T: Deserialize<'de>>(kind: &str) -> bool {
    matches!(T::deserialize(KindsOf(PhantomData)), Err(Kinds(kinds)) if kinds.contains(&kind))
}

/// Deserializes nothing: it fails with the kinds that the derived code of a group names.
struct KindsOf<'de>(PhantomData<&'de ()>);

#[derive(Debug)]
struct Kinds(&'static [&'static str]);

impl Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Kinds {}

impl de::Error for Kinds {
    fn custom<T: Display>(_: T) -> Kinds {
        Kinds(&[])
    }
}

impl<'de> Deserializer<'de> for KindsOf<'de> {
    type Error = Kinds;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Kinds> {
        Err(Kinds(&[]))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        kinds: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Kinds> {
        Err(Kinds(kinds))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::LeaseId;

    #[test]
    fn action_is_written_with_its_kind_first_and_read_back() {
        let action = Action::from(LeaseAction::ClearOveruse { lease: LeaseId(7) });
        let text = serde_json::to_string(&action).unwrap();
        assert_eq!(text, r#"{"kind":"within","lease":7}"#);
        assert_eq!(serde_json::from_str::<Action>(&text).unwrap(), action);
        assert_eq!(action.kind(), "within");
    }

    #[test]
    fn unknown_kind_and_missing_kind_are_refused_with_the_reason() {
        let error = |text| serde_json::from_str::<Action>(text).unwrap_err().to_string();
        assert!(error(r#"{"kind":"dance","lease":7}"#).starts_with("there is no action of the kind `dance`"));
        assert!(error(r#"{"lease":7,"kind":"within"}"#).starts_with("an action begins with its `kind`"));
        assert!(error("{}").starts_with("an action begins with its `kind`"));
        assert!(error(r#"{"kind":"within"}"#).starts_with("missing field `lease`"));
    }

    /// A kind in two groups would be read as the first of them.
    #[test]
    fn kinds_are_unique_among_all_groups() {
        fn kinds<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
            T::deserialize(KindsOf(PhantomData)).map(|_| ()).unwrap_err().0
        }
        let groups = [
            kinds::<DaemonAction>(),
            kinds::<GpuAction>(),
            kinds::<TenantAction>(),
            kinds::<LeaseAction>(),
            kinds::<TokenAction>(),
            kinds::<UnleasedAction>(),
        ];
        let unique: std::collections::BTreeSet<_> = groups.iter().copied().flatten().collect();
        assert_eq!(unique.len(), groups.iter().map(|kinds| kinds.len()).sum::<usize>());
    }
}
