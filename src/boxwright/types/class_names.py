"""Names of classes across data sets: Objects365's, Snapshot Serengeti's, and which mean the same objects as COCO's."""

from __future__ import annotations

import re
from functools import cache

from boxwright.types.categories import DARKNET_NAMES, Categories, Category

# Of version 2, in the order of its ids, which count from 1, spelled as in its annotations.
# fmt: off
_OBJECTS365 = (
    "Person", "Sneakers", "Chair", "Other Shoes", "Hat", "Car", "Lamp", "Glasses", "Bottle", "Desk", "Cup",
    "Street Lights", "Cabinet/shelf", "Handbag/Satchel", "Bracelet", "Plate", "Picture/Frame", "Helmet", "Book",
    "Gloves", "Storage box", "Boat", "Leather Shoes", "Flower", "Bench", "Potted Plant", "Bowl/Basin", "Flag", "Pillow",
    "Boots", "Vase", "Microphone", "Necklace", "Ring", "SUV", "Wine Glass", "Belt", "Moniter/TV", "Backpack",
    "Umbrella", "Traffic Light", "Speaker", "Watch", "Tie", "Trash bin Can", "Slippers", "Bicycle", "Stool",
    "Barrel/bucket", "Van", "Couch", "Sandals", "Bakset", "Drum", "Pen/Pencil", "Bus", "Wild Bird", "High Heels",
    "Motorcycle", "Guitar", "Carpet", "Cell Phone", "Bread", "Camera", "Canned", "Truck", "Traffic cone", "Cymbal",
    "Lifesaver", "Towel", "Stuffed Toy", "Candle", "Sailboat", "Laptop", "Awning", "Bed", "Faucet", "Tent", "Horse",
    "Mirror", "Power outlet", "Sink", "Apple", "Air Conditioner", "Knife", "Hockey Stick", "Paddle", "Pickup Truck",
    "Fork", "Traffic Sign", "Ballon", "Tripod", "Dog", "Spoon", "Clock", "Pot", "Cow", "Cake", "Dinning Table", "Sheep",
    "Hanger", "Blackboard/Whiteboard", "Napkin", "Other Fish", "Orange/Tangerine", "Toiletry", "Keyboard", "Tomato",
    "Lantern", "Machinery Vehicle", "Fan", "Green Vegetables", "Banana", "Baseball Glove", "Airplane", "Mouse", "Train",
    "Pumpkin", "Soccer", "Skiboard", "Luggage", "Nightstand", "Tea pot", "Telephone", "Trolley", "Head Phone",
    "Sports Car", "Stop Sign", "Dessert", "Scooter", "Stroller", "Crane", "Remote", "Refrigerator", "Oven", "Lemon",
    "Duck", "Baseball Bat", "Surveillance Camera", "Cat", "Jug", "Broccoli", "Piano", "Pizza", "Elephant", "Skateboard",
    "Surfboard", "Gun", "Skating and Skiing shoes", "Gas stove", "Donut", "Bow Tie", "Carrot", "Toilet", "Kite",
    "Strawberry", "Other Balls", "Shovel", "Pepper", "Computer Box", "Toilet Paper", "Cleaning Products", "Chopsticks",
    "Microwave", "Pigeon", "Baseball", "Cutting/chopping Board", "Coffee Table", "Side Table", "Scissors", "Marker",
    "Pie", "Ladder", "Snowboard", "Cookies", "Radiator", "Fire Hydrant", "Basketball", "Zebra", "Grape", "Giraffe",
    "Potato", "Sausage", "Tricycle", "Violin", "Egg", "Fire Extinguisher", "Candy", "Fire Truck", "Billards",
    "Converter", "Bathtub", "Wheelchair", "Golf Club", "Briefcase", "Cucumber", "Cigar/Cigarette", "Paint Brush",
    "Pear", "Heavy Truck", "Hamburger", "Extractor", "Extention Cord", "Tong", "Tennis Racket", "Folder",
    "American Football", "earphone", "Mask", "Kettle", "Tennis", "Ship", "Swing", "Coffee Machine", "Slide", "Carriage",
    "Onion", "Green beans", "Projector", "Frisbee", "Washing Machine/Drying Machine", "Chicken", "Printer",
    "Watermelon", "Saxophone", "Tissue", "Toothbrush", "Ice cream", "Hotair ballon", "Cello", "French Fries", "Scale",
    "Trophy", "Cabbage", "Hot dog", "Blender", "Peach", "Rice", "Wallet/Purse", "Volleyball", "Deer", "Goose", "Tape",
    "Tablet", "Cosmetics", "Trumpet", "Pineapple", "Golf Ball", "Ambulance", "Parking meter", "Mango", "Key", "Hurdle",
    "Fishing Rod", "Medal", "Flute", "Brush", "Penguin", "Megaphone", "Corn", "Lettuce", "Garlic", "Swan", "Helicopter",
    "Green Onion", "Sandwich", "Nuts", "Speed Limit Sign", "Induction Cooker", "Broom", "Trombone", "Plum", "Rickshaw",
    "Goldfish", "Kiwi fruit", "Router/modem", "Poker Card", "Toaster", "Shrimp", "Sushi", "Cheese", "Notepaper",
    "Cherry", "Pliers", "CD", "Pasta", "Hammer", "Cue", "Avocado", "Hamimelon", "Flask", "Mushroon", "Screwdriver",
    "Soap", "Recorder", "Bear", "Eggplant", "Board Eraser", "Coconut", "Tape Measur/ Ruler", "Pig", "Showerhead",
    "Globe", "Chips", "Steak", "Crosswalk Sign", "Stapler", "Campel", "Formula 1", "Pomegranate", "Dishwasher", "Crab",
    "Hoverboard", "Meat ball", "Rice Cooker", "Tuba", "Calculator", "Papaya", "Antelope", "Parrot", "Seal", "Buttefly",
    "Dumbbell", "Donkey", "Lion", "Urinal", "Dolphin", "Electric Drill", "Hair Dryer", "Egg tart", "Jellyfish",
    "Treadmill", "Lighter", "Grapefruit", "Game board", "Mop", "Radish", "Baozi", "Target", "French", "Spring Rolls",
    "Monkey", "Rabbit", "Pencil Case", "Yak", "Red Cabbage", "Binoculars", "Asparagus", "Barbell", "Scallop", "Noddles",
    "Comb", "Dumpling", "Oyster", "Table Teniis paddle", "Cosmetics Brush/Eyeliner Pencil", "Chainsaw", "Eraser",
    "Lobster", "Durian", "Okra", "Lipstick", "Cosmetics Mirror", "Curling", "Table Tennis",
)
# In the order of the ids of the Object Detection API's snapshot_serengeti_label_map.pbtxt, which count from 1.
_SNAPSHOT_SERENGETI = (
    "human", "gazelleGrants", "reedbuck", "dikDik", "zebra", "porcupine", "gazelleThomsons", "hyenaSpotted",
    "warthog", "impala", "elephant", "giraffe", "mongoose", "buffalo", "hartebeest", "guineaFowl", "wildebeest",
    "leopard", "ostrich", "lionFemale", "koriBustard", "otherBird", "batEaredFox", "bushbuck", "jackal", "cheetah",
    "eland", "aardwolf", "hippopotamus", "hyenaStriped", "aardvark", "hare", "baboon", "vervetMonkey", "waterbuck",
    "secretaryBird", "serval", "lionMale", "topi", "honeyBadger", "rodents", "wildcat", "civet", "genet", "caracal",
    "rhinoceros", "reptiles", "zorilla",
)
# fmt: on

# To COCO's names, Darknet's (which are VOC's) and Objects365's, as D-FINE's authors take one's class for the other's.
# Names that differ in case alone are not listed.
_COCO_NAMES = DARKNET_NAMES | {
    "wild bird": "bird",
    "handbag/satchel": "handbag",
    "luggage": "suitcase",
    "skating and skiing shoes": "skis",
    "baseball": "sports ball",
    "bowl/basin": "bowl",
    "orange/tangerine": "orange",
    "dinning table": "dining table",
    "moniter/tv": "tv",
    "stuffed toy": "teddy bear",
    "hair dryer": "hair drier",
}


def objects365_classes() -> Categories:
    """Return Objects365's 365 classes, whose labels are their ids, as networks with an unused output 0 have them."""
    return Categories(tuple(Category(number, number, name) for number, name in enumerate(_OBJECTS365, 1)))


def snapshot_serengeti_classes() -> Categories:
    """Return the 48 classes of Snapshot Serengeti that the Object Detection API's detectors of it have."""
    return Categories(tuple(Category(label, label + 1, name) for label, name in enumerate(_SNAPSHOT_SERENGETI)))


def find_same_class(categories: Categories, wanted: Category) -> Category | None:
    """Return the class of the same objects; None if no name tells one.

    The first that agrees in its name, in a name that is spelled alike (case, spaces, underscores and hyphens aside), or
    in a name that another data set has for the objects.
    """
    if (same := categories.by_name(wanted.name)) is not None:
        return same
    for normalize in (_spelled, _meant):
        names = {normalize(name) for name in (wanted.name, wanted.display_name) if name}
        for item in categories:
            if names & {normalize(name) for name in (item.name, item.display_name) if name}:
                return item
    return None


@cache
def _spelled(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _meant(name: str) -> str:
    spelled = _spelled(name)
    return _COCO_NAMES.get(spelled, spelled)
