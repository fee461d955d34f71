"""Official languages: GeoNames has codes, and lists of all that is spoken."""

from __future__ import annotations

LANGUAGES = {
    "ar": "Arabic",
    "az": "Azerbaijani",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "bs": "Bosnian",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "dv": "Dhivehi",
    "dz": "Dzongkha",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fa": "Persian",
    "fr": "French",
    "hr": "Croatian",
    "hu": "Hungarian",
    "hy": "Armenian",
    "id": "Indonesian",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "ka": "Georgian",
    "km": "Khmer",
    "ko": "Korean",
    "lo": "Lao",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mk": "Macedonian",
    "mn": "Mongolian",
    "ms": "Malay",
    "my": "Burmese",
    "ne": "Nepali",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovene",
    "sq": "Albanian",
    "sr": "Serbian",
    "sv": "Swedish",
    "sw": "Swahili",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "uz": "Uzbek",
    "vi": "Vietnamese",
    "zh": "Chinese",
    "am": "Amharic",
    "tg": "Tajik",
    "tk": "Turkmen",
}
LANGUAGE_ALIASES = {
    "fa": ("Farsi",),
    "dv": ("Divehi", "Maldivian"),
    "sl": ("Slovenian",),
    "zh": ("Mandarin",),
    "id": ("Bahasa Indonesia", "Bahasa"),
    "sw": ("Kiswahili",),
    "az": ("Azeri",),
    "bn": ("Bangla",),
    "ms": ("Bahasa Melayu",),
    "lo": ("Laotian",),
    "km": ("Cambodian",),
    "my": ("Myanmar language",),
}
# several languages on an equal footing, or a change of late
NO_LANGUAGE = set(
    (
        "AF AG AU BA BE BF BI BO BW BY CA CD CF CH CM CY DJ DZ ER ET FJ FM GB HT IE IN IQ KE KG KI KM KZ LK LS LU "
        "MA ME MG MH MK ML MR MT MU MW MX NA NE NR NZ PE PG PH PK PW PY RW SC SD SG SO SS SZ TD TL TO TV TZ UA UG "
        "US VU WS ZA ZM ZW"
    ).split()
)
