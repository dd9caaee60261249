"""What tries, measures, packs and shows the product. Never on a device."""
