//! Tables with a row for each GPU or tenant, by its id.
//!
//! Ids are given in order, from 0 on, and kept for ever: rows are added and never taken out. An id is only made by adding
//! a row, so a row is looked up with `table[id]`. On the disk a table is a plain list.

use crate::model::ids::{GpuId, TenantId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Index, IndexMut};

/// A row for each GPU.
pub type GpuTable<T> = IdTable<GpuId, T>;
/// A row for each tenant.
pub type TenantTable<T> = IdTable<TenantId, T>;

/// An id that is a place in a table.
pub trait TableId: Copy {
    /// The id of the row at this place.
    fn from_place(place: usize) -> Self;
    /// The place of its row.
    fn place(self) -> usize;
}

impl TableId for GpuId {
    fn from_place(place: usize) -> GpuId {
        GpuId(place as u16)
    }
    fn place(self) -> usize {
        usize::from(self.0)
    }
}

impl TableId for TenantId {
    fn from_place(place: usize) -> TenantId {
        TenantId(place as u32)
    }
    fn place(self) -> usize {
        self.0 as usize
    }
}

/// Rows by id.
pub struct IdTable<I, T> {
    rows: Vec<T>,
    id: PhantomData<I>,
}

impl<I: TableId, T> IdTable<I, T> {
    /// Adds a row, and returns its id.
    pub fn push(&mut self, row: T) -> I {
        let id = self.next_id();
        self.rows.push(row);
        id
    }

    /// The id of the row that is added next.
    pub fn next_id(&self) -> I {
        I::from_place(self.rows.len())
    }

    /// All ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = I> + use<I, T> {
        (0..self.rows.len()).map(I::from_place)
    }

    /// All rows with their ids, in order.
    pub fn entries(&self) -> impl Iterator<Item = (I, &T)> {
        self.ids().zip(&self.rows)
    }

    /// The row of an id; `None` if the id is of another table.
    pub fn find(&self, id: I) -> Option<&T> {
        self.rows.get(id.place())
    }

    /// The row of an id; `None` if it was not added yet.
    pub fn find_mut(&mut self, id: I) -> Option<&mut T> {
        self.rows.get_mut(id.place())
    }
}

impl<I: TableId, T> Index<I> for IdTable<I, T> {
    type Output = T;
    fn index(&self, id: I) -> &T {
        &self.rows[id.place()]
    }
}

impl<I: TableId, T> IndexMut<I> for IdTable<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.rows[id.place()]
    }
}

/// The rows, in the order of their ids.
impl<I, T> Deref for IdTable<I, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.rows
    }
}

impl<I, T> DerefMut for IdTable<I, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.rows
    }
}

impl<I, T> From<Vec<T>> for IdTable<I, T> {
    fn from(rows: Vec<T>) -> IdTable<I, T> {
        IdTable { rows, id: PhantomData }
    }
}

impl<I, T> FromIterator<T> for IdTable<I, T> {
    fn from_iter<R: IntoIterator<Item = T>>(rows: R) -> IdTable<I, T> {
        IdTable { rows: rows.into_iter().collect(), id: PhantomData }
    }
}

impl<'a, I, T> IntoIterator for &'a IdTable<I, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}

impl<I, T> Default for IdTable<I, T> {
    fn default() -> IdTable<I, T> {
        IdTable { rows: Vec::new(), id: PhantomData }
    }
}

impl<I, T: Clone> Clone for IdTable<I, T> {
    fn clone(&self) -> IdTable<I, T> {
        IdTable { rows: self.rows.clone(), id: PhantomData }
    }
}

impl<I, T: fmt::Debug> fmt::Debug for IdTable<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.fmt(f)
    }
}

impl<I, T: PartialEq> PartialEq for IdTable<I, T> {
    fn eq(&self, other: &IdTable<I, T>) -> bool {
        self.rows == other.rows
    }
}

impl<I, T: Eq> Eq for IdTable<I, T> {}

impl<I, T: Serialize> Serialize for IdTable<I, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.rows.serialize(serializer)
    }
}

impl<'de, I, T: Deserialize<'de>> Deserialize<'de> for IdTable<I, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(|rows| IdTable { rows, id: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_the_id_that_it_got() {
        let mut table = GpuTable::default();
        assert_eq!((table.push("a"), table.push("b")), (GpuId(0), GpuId(1)));
        assert_eq!((table[GpuId(1)], table.find(GpuId(2))), ("b", None));
        assert_eq!(table.entries().last(), Some((GpuId(1), &"b")));
    }
}
